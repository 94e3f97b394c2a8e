// Requests of the time range: searched by id, filtered, ordered; and one request's life when one is picked.
import { useState } from 'preact/hooks';
import { Heads, Panel, Scroll, Told } from '../components/panel';
import { toneOfOutcome } from '../components/decisions';
import { instanceName } from '../fleet';
import { count, durationText, percent, timeOfDay } from '../format';
import { addressOf, inGroup, inRange, paceMs, type Place } from '../place';
import { instant, literal, numberOf, textOf, type Row } from '../sql';
import { useRows } from '../use_rows';
import { Diagnosis } from './diagnosis';
import { RequestLife } from './request_life';
import { OFTEN_MS, type ViewProps } from './view';

const ORDERS = {
  newest: { title: 'newest first', sql: 'd."at" DESC' },
  slowest: { title: 'slowest first token first', sql: 'r.ttft_us DESC NULLS LAST, d."at" DESC' },
  longest: { title: 'longest prompt first', sql: 'd.prompt_tokens DESC, d."at" DESC' },
} as const;

const OUTCOMES = ['admit', 'queue', 'reject'];

function list(place: Place): string {
  const order = ORDERS[place.order as keyof typeof ORDERS] ?? ORDERS.newest;
  const outcome = place.outcome === undefined ? '' : ` AND outcome = ${literal(place.outcome)}`;
  return `WITH d AS (SELECT "at", request_id, model, tenant, tier, outcome, instance, prompt_tokens, reason
  FROM decisions WHERE ${inRange(place, 'at')}${inGroup(place)}${outcome}),
r AS (SELECT request_id, max(cached_tokens) AS cached_tokens, max(CASE WHEN total_us IS NOT NULL THEN output_tokens END) AS output_tokens, max(total_us) AS total_us,
         max(CASE WHEN event = 'first_token' THEN gap_us END) AS ttft_us
  FROM requests WHERE event <> 'grew' AND ${inRange(place, 'at')} GROUP BY request_id)
SELECT d.*, r.cached_tokens, r.output_tokens, r.ttft_us, r.total_us
FROM d LEFT JOIN r ON r.request_id = d.request_id
ORDER BY ${order.sql} LIMIT 50`;
}

export function RequestsView(props: ViewProps) {
  const { place } = props;
  return (
    <>
      <Search {...props} />
      {place.request === undefined ? (
        <>
          <Diagnosis {...props} />
          <List {...props} />
        </>
      ) : (
        <RequestLife {...props} request={place.request} />
      )}
    </>
  );
}

function Search({ place, go }: ViewProps) {
  const [text, setText] = useState('');
  return (
    <form
      class="panel actions search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const request = text.trim();
        if (request !== '') go({ request });
        setText('');
      }}
    >
      <label for="find">Request</label>
      <input
        id="find"
        data-testid="find"
        placeholder="id, as in x-evenkeel-request-id or x-evenkeel-decision"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <button type="submit" disabled={text.trim() === ''}>
        Show
      </button>
      {place.request === undefined ? (
        <>
          <label for="outcome">Outcome</label>
          <select
            id="outcome"
            data-testid="outcome"
            value={place.outcome ?? ''}
            onChange={(event) => go({ outcome: event.currentTarget.value || undefined })}
          >
            <option value="">all</option>
            {OUTCOMES.map((outcome) => (
              <option key={outcome}>{outcome}</option>
            ))}
          </select>
          <label for="order">Order</label>
          <select
            id="order"
            data-testid="order"
            value={place.order ?? 'newest'}
            onChange={(event) => go({ order: event.currentTarget.value })}
          >
            {Object.entries(ORDERS).map(([id, { title }]) => (
              <option key={id} value={id}>
                {title}
              </option>
            ))}
          </select>
        </>
      ) : (
        <a href={addressOf({ ...place, request: undefined })} data-testid="all-requests">
          all requests
        </a>
      )}
    </form>
  );
}

function List({ place, beat, fleet }: ViewProps) {
  const answer = useRows(list(place), beat, paceMs(place, OFTEN_MS));
  return (
    <Panel id="requests" title="Requests" note="an id shows the request's life">
      <Told answer={answer} empty="no request was decided in this time range">
        {() => (
          <Scroll label="Requests">
            <table data-testid="requests-table">
              <Heads
                names={[
                  'Time',
                  'Request',
                  'Tier',
                  'Tenant',
                  'Outcome',
                  'Instance',
                  'Prompt tokens|number',
                  'Reused|number',
                  'TTFT|number',
                  'Total|number',
                  'Output tokens|number',
                ]}
              />
              <tbody>
                {answer.result?.rows.map((row) => (
                  <RequestRow
                    key={`${textOf(row, 'request_id')} ${numberOf(row, 'at')} ${textOf(row, 'outcome')}`}
                    row={row}
                    instance={instanceName(fleet, numberOf(row, 'instance'))}
                    address={addressOf({ ...place, request: textOf(row, 'request_id') ?? '' })}
                  />
                ))}
              </tbody>
            </table>
          </Scroll>
        )}
      </Told>
    </Panel>
  );
}

function RequestRow({ row, instance, address }: { row: Row; instance: string; address: string }) {
  const of = (name: string) => numberOf(row, name);
  const micros = (name: string) => {
    const value = of(name);
    return durationText(value === null ? null : value / 1000);
  };
  const [prompt, cached] = [of('prompt_tokens'), of('cached_tokens')];
  return (
    <tr title={textOf(row, 'reason') ?? ''}>
      <td>{timeOfDay(instant(of('at') ?? 0))}</td>
      <td>
        <a class="id" href={address} data-testid="request-link">
          {textOf(row, 'request_id')}
        </a>
      </td>
      <td>{textOf(row, 'tier')}</td>
      <td>{textOf(row, 'tenant')}</td>
      <td>
        <span class="badge" data-tone={toneOfOutcome(textOf(row, 'outcome') ?? '')}>
          {textOf(row, 'outcome')}
        </span>
      </td>
      <td>{instance}</td>
      <td class="number">{count(prompt)}</td>
      <td class="number">{percent(prompt === null || cached === null || prompt === 0 ? null : cached / prompt)}</td>
      <td class="number">{micros('ttft_us')}</td>
      <td class="number">{micros('total_us')}</td>
      <td class="number">{count(of('output_tokens'))}</td>
    </tr>
  );
}
