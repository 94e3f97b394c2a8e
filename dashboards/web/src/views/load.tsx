// Where the load is and where the caches help: load per atom and instance with the cuts between buckets (SPEC B1, B2),
// and how far prompt tokens got by region and instance (SPEC C5).
import { useMemo } from 'preact/hooks';
import { cutsOf, plansOf } from '../buckets';
import { HeatCell } from '../components/bars';
import { BucketPlan } from '../components/bucket_plan';
import { Heads, Panel, Scroll, Told } from '../components/panel';
import { count, percent } from '../format';
import { funnelOf, hitRate, LAYERS, reached, share } from '../funnel';
import { loadMapOf, type LoadMap } from '../load_map';
import { addressOf, inGroup, inRange, inView, paceMs, type Place } from '../place';
import { numberOf, textOf, type Row } from '../sql';
import { useRows } from '../use_rows';
import { OFTEN_MS, SELDOM_MS, type ViewProps } from './view';

const LOAD = `SELECT instance, from_tokens, to_tokens, tokens, requests FROM atom_load
WHERE as_of = (SELECT max(as_of) FROM atom_load) AND as_of > now() - INTERVAL '5 seconds'`;

function caches(place: Place): string {
  return `SELECT region, instance, layer, reason, sum(tokens) AS tokens,
       CASE WHEN layer = 'prompt' THEN count(DISTINCT request_id) END AS requests
FROM funnel WHERE (layer = 'prompt' OR reason IS NOT NULL) AND ${inRange(place, 'at')}${inGroup(place)}
GROUP BY region, instance, layer, reason`;
}

const PLANS = `SELECT b.* FROM buckets b JOIN (SELECT model, max(plan) AS plan FROM buckets GROUP BY model) n
ON b.model = n.model AND b.plan = n.plan`;

export function LoadView(props: ViewProps) {
  const { tables, beat, fleet, place } = props;
  const answer = useRows(tables?.has('buckets') === true ? PLANS : null, beat, SELDOM_MS);
  const all = useMemo(() => plansOf(answer.result?.rows ?? []), [answer.result]);
  const plans = all.filter(({ model }) => place.model === undefined || place.model === model);
  const nameOf = (id: number) => fleet?.instances.find(({ instance }) => instance === id)?.name ?? `#${id}`;
  return (
    <>
      <BucketMap {...props} cuts={cutsOf(plans)} nameOf={nameOf} />
      <Panel id="buckets" title="Buckets" note="ranges of prompt length with instances of their own">
        {tables?.has('buckets') === true ? (
          <Told answer={answer} empty="no plan yet">
            {() => plans.map((plan) => <BucketPlan key={plan.model} plan={plan} nameOf={nameOf} />)}
          </Told>
        ) : (
          <p class="empty" data-testid="no-buckets">
            {tables === null ? 'asking …' : 'No bucket plan: all lengths share all instances.'}
          </p>
        )}
      </Panel>
      <CacheMap {...props} />
    </>
  );
}

type BucketMapProps = ViewProps & { cuts: readonly number[]; nameOf: (instance: number) => string };

function BucketMap({ beat, fleet, cuts, nameOf }: BucketMapProps) {
  const answer = useRows(LOAD, beat, OFTEN_MS);
  const ids = (fleet?.instances ?? []).map(({ instance }) => instance);
  const map = loadMapOf(answer.result?.rows ?? [], ids);
  return (
    <Panel
      id="load-map"
      title="Load by instance and context length"
      unit={`context tokens of live requests, per ${count(map.width)} tokens of length`}
      note={cuts.length === 0 ? 'no cuts between buckets' : `cuts at ${cuts.map(count).join(', ')} tokens`}
    >
      {map.starts.length === 0 ? (
        <p class="empty">{answer.problem ?? (answer.result === null ? 'asking …' : 'no live requests')}</p>
      ) : (
        <Scroll label="Load by instance and context length">
          <LoadTable map={map} cuts={cuts} nameOf={nameOf} />
        </Scroll>
      )}
    </Panel>
  );
}

interface LoadTableProps {
  map: LoadMap;
  cuts: readonly number[];
  nameOf: (instance: number) => string;
}

function LoadTable({ map, cuts, nameOf }: LoadTableProps) {
  const most = Math.max(1, ...map.instances.flatMap(({ tokens }) => tokens));
  const all = map.totals.reduce((sum, tokens) => sum + tokens, 0);
  const isCut = (start: number) => cuts.some((cut) => cut >= start && cut < start + map.width);
  const heads = map.starts.map(
    (start) => `${start === 0 ? 'from 0' : count(start)}|number${isCut(start) ? ' cut' : ''}`,
  );
  return (
    <table class="map" data-testid="load-map">
      <Heads names={['Instance', ...heads, 'All|number']} />
      <tbody>
        {map.instances.map((line) => (
          <tr key={line.instance}>
            <th scope="row">{nameOf(line.instance)}</th>
            {line.tokens.map((tokens, index) => (
              <HeatCell
                key={index}
                share={tokens / most}
                title={`${nameOf(line.instance)}, ${map.starts[index]} tokens and more: ${tokens} tokens in ${line.requests[index]} requests`}
              >
                {tokens === 0 ? '' : count(tokens)}
              </HeatCell>
            ))}
            <td class="number">{count(line.total)}</td>
          </tr>
        ))}
        <tr>
          <th scope="row">all</th>
          {map.totals.map((tokens, index) => (
            <td key={index} class="number">
              {tokens === 0 ? '' : count(tokens)}
            </td>
          ))}
          <td class="number">{count(all)}</td>
        </tr>
      </tbody>
    </table>
  );
}

interface Line {
  region: string;
  instance: number | null;
  rows: Row[];
}

/** One line per region and one per instance in it; requests that were never placed have no instance. */
function linesOf(rows: readonly Row[]): Line[] {
  const lines = new Map<string, Line>();
  for (const row of rows) {
    const [region, instance] = [textOf(row, 'region') ?? '', numberOf(row, 'instance')];
    for (const key of [`${region}`, `${region} ${instance}`]) {
      const line = lines.get(key) ?? { region, instance: key === region ? null : instance, rows: [] };
      lines.set(key, line);
      line.rows.push(row);
    }
  }
  return [...lines.entries()]
    .filter(([key, line]) => line.instance !== null || key === line.region)
    .map(([, line]) => line)
    .sort((a, b) => a.region.localeCompare(b.region) || (a.instance ?? -1) - (b.instance ?? -1));
}

function CacheMap({ place, beat, fleet }: ViewProps) {
  const answer = useRows(caches(place), beat, paceMs(place, SELDOM_MS));
  const lines = useMemo(
    () => linesOf(answer.result?.rows ?? []).map((line) => ({ ...line, funnel: funnelOf(line.rows) })),
    [answer.result],
  );
  const layers = LAYERS.slice(1);
  return (
    <Panel
      id="cache-map"
      title="Caches by region and instance"
      unit="share of prompt tokens that got so far"
      note={<a href={addressOf(inView(place, 'cache'))}>why tokens are lost</a>}
    >
      <Told answer={answer} empty="no request was closed in this time range">
        {() => (
          <Scroll label="Caches by region and instance">
            <table class="map" data-testid="cache-map">
              <Heads
                names={[
                  'Region, instance',
                  ...layers.map(({ title }) => `${title}|number`),
                  'Requests|number',
                  'Blocks in use|number',
                  'Blocks kept|number',
                ]}
              />
              <tbody>
                {lines.map(({ region, instance, funnel }) => {
                  const one = fleet?.instances.find((other) => other.instance === instance);
                  const of = (blocks: number | null | undefined) =>
                    blocks == null || one?.blocksTotal == null || one.blocksTotal === 0
                      ? null
                      : blocks / one.blocksTotal;
                  const name = instance === null ? region : (one?.name ?? `#${instance}`);
                  return (
                    <tr key={`${region} ${instance}`} class={instance === null ? 'layer' : 'loss'}>
                      <th scope="row">{name}</th>
                      {layers.map(({ id, title, means }) => {
                        const part = id === 'delivered' ? hitRate(funnel) : share(funnel, reached(funnel, id));
                        return (
                          <HeatCell key={id} share={part} title={`${name}, ${title}: ${percent(part)}, ${means}`}>
                            {percent(part)}
                          </HeatCell>
                        );
                      })}
                      <td class="number">{count(funnel.requests)}</td>
                      <td class="number">{instance === null ? '' : percent(of(one?.blocksUsed))}</td>
                      <td class="number">{instance === null ? '' : percent(of(one?.blocksCached))}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </Scroll>
        )}
      </Told>
    </Panel>
  );
}
