// What another capacity would buy (SPEC X4): the miss-ratio curve with a slider, beside what the fleet has now.
import { useMemo } from 'preact/hooks';
import { LineChart } from '../components/line_chart';
import { Panel, Told } from '../components/panel';
import { instancesOf } from '../fleet';
import { age, count, percent, percentMark, points, UNKNOWN } from '../format';
import { at, blocksOf, capacityFor, curvesOf, stopOf, STOPS, type Curve } from '../miss_ratio';
import { useRows } from '../use_rows';
import { SELDOM_MS, type ViewProps } from './view';

const CURVES = `SELECT scope, model, tier, tenant, window_seconds, prompts, prompt_tokens, capacity_blocks, capacity_tokens,
       hit_rate, hit_rate_error, blocks_seen
FROM mrc WHERE as_of = (SELECT max(as_of) FROM mrc)`;

export function CapacityView(props: ViewProps) {
  const { place, go, beat, fleet } = props;
  const answer = useRows(CURVES, beat, SELDOM_MS);
  const curves = useMemo(() => curvesOf(answer.result?.rows ?? []), [answer.result]);
  const curve = curves.find(({ scope }) => scope === place.scope) ?? curves[0];
  // Caches of one model are of no use to another.
  const model = /^model (.*)$/.exec(curve?.scope ?? '')?.[1];
  const now = instancesOf(fleet, model).reduce((sum, one) => sum + (one.blocksTotal ?? 0), 0);
  return (
    <Told answer={answer} empty="No prompt was followed yet: the curve comes once requests arrive.">
      {() => (
        <>
          <Panel id="scope" title="Whose prompts">
            <div class="examples" role="group" aria-label="Whose prompts">
              {curves.slice(0, 24).map(({ scope }) => (
                <button key={scope} type="button" aria-pressed={scope === curve?.scope} onClick={() => go({ scope })}>
                  {scope}
                </button>
              ))}
            </div>
          </Panel>
          {curve !== undefined && <CurvePanel key={curve.scope} curve={curve} now={now} {...props} />}
        </>
      )}
    </Told>
  );
}

function CurvePanel({ curve, now, place, go }: ViewProps & { curve: Curve; now: number }) {
  const last = curve.points.at(-1)?.blocks ?? 1;
  const most = Math.max(last, now * 4, 2);
  const asked = Number(place.blocks);
  const blocks = Number.isFinite(asked) && asked >= 1 ? Math.min(asked, most) : Math.max(1, now * 2);
  const chart = useMemo(() => stairs(curve, most), [curve, most]);
  const [there, here] = [at(curve, blocks), now > 0 ? at(curve, now) : null];
  const gain = there === null || here === null ? null : there.hitRate - here.hitRate;
  const enough = curve.most === null ? null : capacityFor(curve, curve.most * 0.99);
  return (
    <>
      <LineChart
        id="mrc"
        title={`Hit rate by capacity, ${curve.scope}`}
        unit="of prompt tokens; one LRU cache shared by all"
        axis="log"
        x={chart.x}
        lines={chart.lines}
        range={[1, most]}
        top={1}
        height={220}
        text={percent}
        axisText={percentMark}
        xText={(x) => `${count(Math.round(x))}`}
        marks={[...(now > 0 ? [{ x: now, label: 'now' }] : []), { x: blocks, label: 'slider' }]}
      />
      <section class="panel" aria-labelledby="slider-title">
        <div class="panel-head">
          <h2 id="slider-title">Capacity</h2>
          <p class="legend">blocks of all instances together</p>
        </div>
        <div class="actions">
          <label for="capacity" class="visually-hidden">
            Capacity in blocks
          </label>
          <input
            id="capacity"
            data-testid="capacity"
            class="wide"
            type="range"
            min={0}
            max={STOPS}
            value={stopOf(blocks, most)}
            aria-valuetext={`${blocks} blocks`}
            onInput={(event) => go({ blocks: String(blocksOf(Number(event.currentTarget.value), most)) }, 'quietly')}
          />
          {now > 0 &&
            [1, 2, 4].map((times) => (
              <button key={times} type="button" onClick={() => go({ blocks: String(now * times) }, 'quietly')}>
                {times === 1 ? 'as now' : `${times} times`}
              </button>
            ))}
        </div>
        <p data-testid="capacity-answer">
          <b>{count(blocks)}</b> blocks{now > 0 && ` (${(blocks / now).toFixed(2)} times now)`},{' '}
          {count(there === null ? null : (blocks / there.blocks) * there.tokens)} tokens: hit rate{' '}
          <b data-testid="capacity-hit-rate">{percent(there?.hitRate ?? null)}</b> ± {percent(there?.error ?? null)}
          {gain !== null && (
            <>
              , <b>{points(gain)}</b> against the {percent(here?.hitRate ?? null)} of {count(now)} blocks
            </>
          )}
          .
        </p>
        <p class="muted">
          Without a bound {percent(curve.most)}
          {enough === null ? '' : `; 99 % of that takes ${count(enough)} blocks`}. From {count(curve.prompts)} prompts
          of the last {age(curve.windowSeconds * 1000)}, {count(curve.blocksSeen)} different blocks. The fleet's own
          rate can be lower, since its cache is split over instances
          {now > 0 ? '' : `; how many blocks it has is ${UNKNOWN}`}.
        </p>
      </section>
    </>
  );
}

/** The staircase with its two ends. */
function stairs(curve: Curve, most: number) {
  const ends = curve.points.length === 0 ? [] : [...curve.points, { ...curve.points.at(-1)!, blocks: most }];
  const shown = ends.filter((point, index) => index === 0 || point.blocks > (ends[index - 1]?.blocks ?? 0));
  return {
    x: shown.map(({ blocks }) => blocks),
    lines: [
      { label: 'hit rate', colour: '--series-2', shape: 'steps' as const, values: shown.map(({ hitRate }) => hitRate) },
      ...(curve.most === null
        ? []
        : [{ label: 'without a bound', colour: '--series-1', values: shown.map(() => curve.most) }]),
    ],
  };
}
