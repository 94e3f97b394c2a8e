// One reason of the funnel: what it means, what to look at, who lost the tokens, what the caches did meanwhile, and the
// requests that lost most.
import { useEffect, useMemo, useRef } from 'preact/hooks';
import { LineChart } from '../components/line_chart';
import { Meter } from '../components/bars';
import { Heads, Panel, Scroll, Told } from '../components/panel';
import { instanceName, instancesOf } from '../fleet';
import { count, countMark, durationText, percent, timeOfDay } from '../format';
import { LAYERS, layerOf, reasonOf } from '../funnel';
import { addressOf, inGroup, inRange, inView, paceMs, stepSeconds, type Place } from '../place';
import { reasonWords } from '../reasons';
import { instant, literal, numberOf, textOf, type Row } from '../sql';
import { useRows } from '../use_rows';
import { COLOURS, SELDOM_MS, type ViewProps } from './view';

type Props = ViewProps & { loss: string; split: number | null };

/** Reasons that are told by what the caches dropped. */
const EVICTIONS = new Set(['present.evicted', 'delivered.engine_eviction', 'delivered.stale_view', 'visible.phantom']);

function lost(loss: string): string {
  return `layer = ${literal(layerOf(loss))} AND reason = ${literal(reasonOf(loss))}`;
}

function since(split: number | null, column: string): string {
  return split === null ? '' : ` AND "${column}" >= TIMESTAMP '${new Date(split).toISOString()}'`;
}

function losers(place: Place, loss: string, split: number | null): string {
  const filter = `${inRange(place, 'at')}${since(split, 'at')}${inGroup(place)}`;
  return `SELECT * FROM (
  SELECT model, tier, tenant, instance, count(DISTINCT request_id) AS requests, sum(tokens) AS lost,
         sum(predicted_seconds) AS seconds
  FROM funnel WHERE ${lost(loss)} AND ${filter} GROUP BY model, tier, tenant, instance)
ORDER BY abs(lost) DESC LIMIT 12`;
}

function worst(place: Place, loss: string, split: number | null): string {
  const filter = `${inRange(place, 'at')}${since(split, 'at')}${inGroup(place)}`;
  return `SELECT * FROM (
  SELECT request_id, max("at") AS "at", max(tier) AS tier, max(instance) AS instance, sum(tokens) AS lost,
         sum(predicted_seconds) AS seconds
  FROM funnel WHERE ${lost(loss)} AND ${filter} GROUP BY request_id)
ORDER BY abs(lost) DESC, "at" DESC LIMIT 20`;
}

export function LossDetail(props: Props) {
  const { place, loss, split, beat, fleet } = props;
  const words = reasonWords(loss);
  const nameOf = (row: Row) => instanceName(fleet, numberOf(row, 'instance'));
  const groups = useRows(losers(place, loss, split), beat, paceMs(place, SELDOM_MS));
  const requests = useRows(worst(place, loss, split), beat, paceMs(place, SELDOM_MS));
  // Picked above, out of sight below: brought to where it can be read.
  const top = useRef<HTMLDivElement>(null);
  useEffect(() => {
    top.current?.focus({ preventScroll: true });
    top.current?.scrollIntoView({ block: 'start' });
  }, [loss]);
  return (
    <>
      <div ref={top} tabIndex={-1} class="landing" />
      <Panel
        id="loss"
        title={`${LAYERS.find(({ id }) => id === layerOf(loss))?.title ?? layerOf(loss)}: ${words.title}`}
        note={<a href={addressOf({ ...place, loss: undefined })}>close</a>}
      >
        <p data-testid="loss-means">{words.means}</p>
        <p class="muted">{words.look}</p>
        {EVICTIONS.has(loss) && (
          <p>
            <a data-testid="to-capacity" href={addressOf(inView(place, 'capacity'))}>
              What would more capacity buy?
            </a>
          </p>
        )}
      </Panel>
      {EVICTIONS.has(loss) && <Evictions {...props} />}
      <div class="halves">
        <Panel id="losers" title="Who lost them">
          <Told answer={groups} empty="no request lost tokens for this reason in this time range">
            {() => <Losers rows={groups.result?.rows ?? []} nameOf={nameOf} />}
          </Told>
        </Panel>
        <Panel id="worst" title="Requests that lost most" note="an id shows the request's life">
          <Told answer={requests} empty="no request lost tokens for this reason in this time range">
            {() => (
              <Scroll label="Requests that lost most" tall="tall">
                <table data-testid="worst-table">
                  <Heads names={['Time', 'Request', 'Tier', 'Instance', 'Tokens|number', 'Time to compute|number']} />
                  <tbody>
                    {requests.result?.rows.map((row) => (
                      <tr key={textOf(row, 'request_id')}>
                        <td>{timeOfDay(instant(numberOf(row, 'at') ?? 0))}</td>
                        <td>
                          <a
                            class="id"
                            data-testid="worst-request"
                            href={addressOf({ ...inView(place, 'requests'), request: textOf(row, 'request_id') ?? '' })}
                          >
                            {textOf(row, 'request_id')}
                          </a>
                        </td>
                        <td>{textOf(row, 'tier')}</td>
                        <td>{nameOf(row)}</td>
                        <td class="number">{count(numberOf(row, 'lost'))}</td>
                        <td class="number">{computing(row)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </Scroll>
            )}
          </Told>
        </Panel>
      </div>
    </>
  );
}

function Losers({ rows, nameOf }: { rows: readonly Row[]; nameOf: (row: Row) => string }) {
  const all = rows.reduce((sum, row) => sum + Math.abs(numberOf(row, 'lost') ?? 0), 0);
  const part = (row: Row) => (all > 0 ? Math.abs(numberOf(row, 'lost') ?? 0) / all : null);
  return (
    <Scroll label="Who lost them">
      <table data-testid="losers-table">
        <Heads names={['Tenant', 'Tier', 'Instance', 'Tokens|number', 'Share', 'Requests|number', 'Model']} />
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              <th scope="row">{textOf(row, 'tenant')}</th>
              <td>{textOf(row, 'tier')}</td>
              <td>{nameOf(row)}</td>
              <td class="number">{count(numberOf(row, 'lost'))}</td>
              <td>
                <span class="measured">
                  <Meter parts={[{ share: part(row), colour: '--series-3' }]} />
                  <span class="number">{percent(part(row))}</span>
                </span>
              </td>
              <td class="number">{count(numberOf(row, 'requests'))}</td>
              <td>{textOf(row, 'model')}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function computing(row: Row): string {
  const seconds = numberOf(row, 'seconds');
  return durationText(seconds === null ? null : seconds * 1000);
}

/** Blocks that the instances dropped, and how full they are: the evidence of an eviction. */
function Evictions({ place, beat, fleet, split }: Props) {
  const step = stepSeconds(place);
  const own = instancesOf(fleet, place.model);
  const ids = own.map(({ instance }) => instance);
  const ofModel = place.model === undefined || ids.length === 0 ? '' : ` AND instance IN (${ids})`;
  const answer = useRows(
    `SELECT date_bin(INTERVAL '${step} seconds', "at") AS since, instance, count(*) AS removed
FROM kv_events WHERE event = 'removed' AND ${inRange(place, 'at')}${ofModel}
GROUP BY 1, 2 ORDER BY 1`,
    beat,
    paceMs(place, SELDOM_MS),
  );
  const chart = useMemo(() => evictionLines(answer.result?.rows ?? [], step, fleet), [answer.result, step, fleet]);
  const blocks = own.reduce((all, one) => all + (one.blocksTotal ?? 0), 0);
  const free = own.reduce(
    (all, one) => all + Math.max(0, (one.blocksTotal ?? 0) - (one.blocksUsed ?? 0) - (one.blocksCached ?? 0)),
    0,
  );
  return (
    <LineChart
      id="evictions"
      title={`Blocks dropped; ${count(free)} of ${count(blocks)} are free now`}
      unit="blocks/s"
      x={chart.x}
      lines={chart.lines}
      text={(value) => (value === null ? '–' : countMark(Number(value.toFixed(1))))}
      axisText={countMark}
      marks={split === null ? [] : [{ x: split / 1000, label: 'after' }]}
      empty={answer.result === null ? 'asking …' : 'no block was dropped in this time range'}
    />
  );
}

/** Lines drawn at most; further instances are added up in the last. */
const LINES_MAX = COLOURS.length;

function evictionLines(rows: readonly Row[], step: number, fleet: ViewProps['fleet']) {
  // A step without a row had none dropped.
  const times = rows.map((row) => (numberOf(row, 'since') ?? 0) / 1000);
  const [first, last] = [times[0] ?? 0, times.at(-1) ?? 0];
  const x =
    times.length === 0 ? [] : Array.from({ length: (last - first) / step + 1 }, (_, index) => first + index * step);
  const ids = [...new Set(rows.map((row) => numberOf(row, 'instance') ?? -1))].sort((a, b) => a - b);
  const lineOf = (id: number) => Math.min(ids.indexOf(id), LINES_MAX - 1);
  const lines = ids.slice(0, LINES_MAX).map((id, index) => ({
    label: index === LINES_MAX - 1 && ids.length > LINES_MAX ? 'others' : instanceName(fleet, id),
    colour: COLOURS[index] ?? '--muted',
    values: x.map(() => 0),
  }));
  const places = new Map(x.map((at, index) => [at, index]));
  for (const row of rows) {
    const index = places.get((numberOf(row, 'since') ?? 0) / 1000);
    const values = lines[lineOf(numberOf(row, 'instance') ?? -1)]?.values;
    if (index !== undefined && values !== undefined) {
      values[index] = (values[index] ?? 0) + (numberOf(row, 'removed') ?? 0) / step;
    }
  }
  return { x, lines };
}
