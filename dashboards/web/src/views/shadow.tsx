// What shadow policies would have decided (SPEC X1): how often each differs and what that is predicted to change, and
// the decisions that differ, side by side.
import { Heads, Panel, Scroll, Told } from '../components/panel';
import { instanceName } from '../fleet';
import { count, durationText, percent, spoken, timeOfDay, UNKNOWN } from '../format';
import { addressOf, inRange, inView, paceMs, type Place } from '../place';
import { instant, literal, numberOf, textOf, type Row } from '../sql';
import { useRows } from '../use_rows';
import { OFTEN_MS, type ViewProps } from './view';

const TABLE = 'shadow_decisions';

const differing = (column: string) =>
  `sum(CASE WHEN acting_${column} IS DISTINCT FROM shadow_${column} THEN 1 ELSE 0 END) AS ${column}_changed`;

function summary(place: Place): string {
  return `SELECT shadow, count(*) AS decisions, sum(CASE WHEN is_changed THEN 1 ELSE 0 END) AS changed,
       ${['tier', 'outcome', 'instance', 'throttle_step'].map(differing).join(',\n       ')},
       avg(seconds_difference) AS seconds, sum(hit_tokens_difference) AS hit_tokens
FROM ${TABLE} WHERE ${inRange(place, 'at')} GROUP BY shadow ORDER BY shadow`;
}

function changes(place: Place): string {
  const one = place.scope === undefined ? '' : ` AND shadow = ${literal(place.scope)}`;
  return `SELECT * FROM ${TABLE} WHERE is_changed AND ${inRange(place, 'at')}${one} ORDER BY "at" DESC LIMIT 100`;
}

export function ShadowView(props: ViewProps) {
  const { place, beat, tables, fleet } = props;
  const has = tables?.has(TABLE) === true;
  const policies = useRows(has ? summary(place) : null, beat, paceMs(place, OFTEN_MS));
  const list = useRows(has ? changes(place) : null, beat, paceMs(place, OFTEN_MS));
  if (!has) {
    return (
      <Panel id="shadow" title="Shadow policies">
        <p class="empty" data-testid="no-shadow">
          {tables === null ? 'asking …' : 'This server keeps no decisions of shadow policies.'}
        </p>
      </Panel>
    );
  }
  const nameOf = (row: Row, column: string) => instanceName(fleet, numberOf(row, column));
  const isNone = policies.result?.rows.length === 0;
  return (
    <>
      <Panel id="shadow" title="Shadow policies" note="they decide on the live stream and do not act">
        <Told answer={policies} empty="No shadow policy decided in this time range; [[shadow.policies]] names them.">
          {() => <Policies rows={policies.result?.rows ?? []} place={place} />}
        </Told>
      </Panel>
      {!isNone && (
        <Panel
          id="shadow-changes"
          title={`Decisions that differ${place.scope === undefined ? '' : ` from those of ${place.scope}`}`}
          note="what was decided, and what the shadow would have"
        >
          <Told answer={list} empty="none differs in this time range">
            {() => <Changes rows={list.result?.rows ?? []} place={place} nameOf={nameOf} />}
          </Told>
        </Panel>
      )}
    </>
  );
}

function Policies({ rows, place }: { rows: readonly Row[]; place: Place }) {
  return (
    <Scroll label="Shadow policies">
      <table data-testid="shadow-table">
        <Heads
          names={[
            'Policy',
            'Decisions|number',
            'Differ|number',
            'Tier|number',
            'Outcome|number',
            'Instance|number',
            'Throttle step|number',
            'Predicted TTFT, mean change|number',
            'Hit tokens, change|number',
          ]}
        />
        <tbody>
          {rows.map((row) => {
            const [name, all, changed] = [
              textOf(row, 'shadow') ?? '',
              numberOf(row, 'decisions'),
              numberOf(row, 'changed'),
            ];
            const isPicked = place.scope === name;
            return (
              <tr key={name}>
                <th scope="row">
                  <a
                    href={addressOf({ ...place, scope: isPicked ? undefined : name })}
                    aria-current={isPicked ? 'true' : undefined}
                  >
                    {name}
                  </a>
                </th>
                <td class="number">{count(all)}</td>
                <td class="number">
                  {count(changed)} ({percent(all === null || changed === null || all === 0 ? null : changed / all)})
                </td>
                {['tier', 'outcome', 'instance', 'throttle_step'].map((column) => (
                  <td key={column} class="number">
                    {count(numberOf(row, `${column}_changed`))}
                  </td>
                ))}
                <td class="number">{difference(numberOf(row, 'seconds'), seconds)}</td>
                <td class="number">{difference(numberOf(row, 'hit_tokens'), count)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}

interface ChangesProps {
  rows: readonly Row[];
  place: Place;
  nameOf: (row: Row, column: string) => string;
}

function Changes({ rows, place, nameOf }: ChangesProps) {
  return (
    <Scroll label="Decisions that differ" tall="tall">
      <table data-testid="shadow-changes">
        <Heads
          names={[
            'Time',
            'Request',
            'Policy',
            'Tier',
            'Outcome',
            'Instance',
            'Throttle step',
            'Predicted TTFT|number',
            'Change|number',
            'Hit tokens|number',
          ]}
        />
        <tbody>
          {rows.map((row) => {
            const request = textOf(row, 'request_id') ?? '';
            const acting = numberOf(row, 'acting_seconds');
            const text = (column: string) => (
              <Both acting={textOf(row, `acting_${column}`)} shadow={textOf(row, `shadow_${column}`)} />
            );
            return (
              <tr
                key={`${textOf(row, 'decision_id')} ${textOf(row, 'shadow')}`}
                title={`${textOf(row, 'acting_reason')} | ${textOf(row, 'shadow_reason')}`}
              >
                <td>{timeOfDay(instant(numberOf(row, 'at') ?? 0))}</td>
                <td>
                  <a class="id" href={addressOf({ ...inView(place, 'requests'), request })}>
                    {request}
                  </a>
                </td>
                <td>{textOf(row, 'shadow')}</td>
                <td>{text('tier')}</td>
                <td>{text('outcome')}</td>
                <td>
                  <Both acting={nameOf(row, 'acting_instance')} shadow={nameOf(row, 'shadow_instance')} />
                </td>
                <td>{text('throttle_step')}</td>
                <td class="number">{seconds(acting)}</td>
                <td class="number">{difference(numberOf(row, 'seconds_difference'), seconds)}</td>
                <td class="number">{difference(numberOf(row, 'hit_tokens_difference'), count)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}

/** What was decided, and, where it differs, what the shadow would have. */
function Both({ acting, shadow }: { acting: string | null; shadow: string | null }) {
  if (acting === shadow) return <span class="muted">{spoken(acting)}</span>;
  return (
    <>
      {spoken(acting)} → <b>{spoken(shadow)}</b>
    </>
  );
}

const seconds = (value: number | null) => durationText(value === null ? null : value * 1000);

function difference(value: number | null, text: (value: number | null) => string): string {
  if (value === null) return UNKNOWN;
  if (value === 0) return text(0);
  return `${value > 0 ? '+' : '−'}${text(Math.abs(value))}`;
}
