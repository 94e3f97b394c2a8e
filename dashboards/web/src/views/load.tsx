// Where the load is and where the caches help: load per atom and instance with the cuts between buckets (SPEC B1, B2),
// and how far prompt tokens got by region and instance (SPEC C5).
import { useMemo } from 'preact/hooks';
import { cutsOf, plansOf } from '../buckets';
import { HeatCell } from '../components/bars';
import { BucketPlan } from '../components/bucket_plan';
import { Heads, Panel, Scroll, Told } from '../components/panel';
import { instanceName, instancesOf } from '../fleet';
import { count } from '../format';
import { loadMapOf, type LoadMap } from '../load_map';
import { numberOf } from '../sql';
import { useRows } from '../use_rows';
import { CacheMap } from './cache_map';
import { OFTEN_MS, SELDOM_MS, type ViewProps } from './view';

const LOAD = `SELECT instance, from_tokens, to_tokens, tokens, requests FROM atom_load
WHERE as_of = (SELECT max(as_of) FROM atom_load) AND as_of > now() - INTERVAL '5 seconds'`;

const PLANS = `SELECT b.* FROM buckets b JOIN (SELECT model, max(plan) AS plan FROM buckets GROUP BY model) n
ON b.model = n.model AND b.plan = n.plan`;

export function LoadView(props: ViewProps) {
  const { tables, beat, fleet, place } = props;
  const answer = useRows(tables?.has('buckets') === true ? PLANS : null, beat, SELDOM_MS);
  const all = useMemo(() => plansOf(answer.result?.rows ?? []), [answer.result]);
  const plans = all.filter(({ model }) => place.model === undefined || place.model === model);
  const nameOf = (id: number) => instanceName(fleet, id);
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

function BucketMap({ place, beat, fleet, cuts, nameOf }: BucketMapProps) {
  const answer = useRows(LOAD, beat, OFTEN_MS);
  const ids = new Set(instancesOf(fleet, place.model).map(({ instance }) => instance));
  const rows = (answer.result?.rows ?? []).filter(
    (row) => place.model === undefined || ids.has(numberOf(row, 'instance') ?? -1),
  );
  const map = loadMapOf(rows, [...ids]);
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
  const edges = map.starts.map((start) =>
    cuts.some((cut) => cut >= start && cut < start + map.width) ? ('cut' as const) : undefined,
  );
  const heads = map.starts.map(
    (start, index) => `${start === 0 ? 'from 0' : count(start)}|number${edges[index] === undefined ? '' : ' cut'}`,
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
                edge={edges[index]}
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
            <td key={index} class={edges[index] === undefined ? 'number' : 'number cut'}>
              {tokens === 0 ? '' : count(tokens)}
            </td>
          ))}
          <td class="number">{count(all)}</td>
        </tr>
      </tbody>
    </table>
  );
}
