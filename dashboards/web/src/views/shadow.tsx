// What a shadow policy would have decided (SPEC X1), beside what was decided.
import { NewestRows } from '../components/newest_rows';
import { Panel } from '../components/panel';
import { inRange } from '../place';
import type { ViewProps } from './view';

const TABLE = 'shadow_decisions';

export function ShadowView({ place, beat, tables }: ViewProps) {
  return (
    <Panel id="shadow" title="Decisions of shadow policies">
      {tables?.has(TABLE) === true ? (
        <NewestRows table={TABLE} beat={beat} where={inRange(place, 'at')} />
      ) : (
        <p class="empty" data-testid="no-shadow">
          {tables === null ? 'asking …' : 'No shadow policy runs on this server.'}
        </p>
      )}
    </Panel>
  );
}
