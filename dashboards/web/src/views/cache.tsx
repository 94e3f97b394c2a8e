// Why the hit rate fell (SPEC C5): its history, when it fell, the waterfall after and before, and for the reason that is
// picked who lost the tokens and in which requests.
import { useMemo } from 'preact/hooks';
import { LineChart } from '../components/line_chart';
import { Told } from '../components/panel';
import { Waterfall } from '../components/waterfall';
import { clock, count, percent, percentMark, points } from '../format';
import {
  broken,
  causes,
  EMPTY,
  fallOf,
  hitRate,
  LAYERS,
  layerOf,
  parted,
  reached,
  share,
  sum,
  windowsOf,
  type Funnel,
  type Window,
} from '../funnel';
import { addressOf, inGroup, inRange, paceMs, stepSeconds, type Place } from '../place';
import { reasonWords } from '../reasons';
import { useRows } from '../use_rows';
import { LossDetail } from './loss_detail';
import { OFTEN_MS, type ViewProps } from './view';

function history(place: Place): string {
  return `SELECT date_bin(INTERVAL '${stepSeconds(place)} seconds', as_of) AS since, layer, reason,
       sum(tokens) AS tokens, sum(predicted_seconds) AS seconds, sum(requests) AS requests
FROM funnel_window
WHERE span = 'tumbling' AND (layer = 'prompt' OR reason IS NOT NULL) AND ${inRange(place, 'as_of')}${inGroup(place)}
GROUP BY 1, 2, 3 ORDER BY 1`;
}

/** What the view shows, from the windows and where they are parted. */
interface Story {
  windows: Window[];
  /** Where before ends and after begins; `null` where there is no fall and none was picked. */
  split: number | null;
  before: Funnel;
  after: Funnel;
  causes: { id: string; points: number }[];
}

function storyOf(windows: Window[], picked: string | undefined): Story {
  const chosen = Date.parse(picked ?? '');
  const split = Number.isNaN(chosen) ? fallOf(windows) : chosen;
  const { before, after } = split === null ? { before: EMPTY, after: sum(windows) } : parted(windows, split);
  return { windows, split, before, after, causes: causes(after, before) };
}

export function CacheView(props: ViewProps) {
  const { place, beat } = props;
  const answer = useRows(history(place), beat, paceMs(place, OFTEN_MS));
  const { result } = answer;
  const story = useMemo(() => storyOf(windowsOf(result?.rows ?? []), place.split), [result, place.split]);
  const loss = place.loss ?? null;
  return (
    <>
      <Told answer={answer} empty="No request was closed in this time range: choose a longer one, or other filters.">
        {() => (
          <>
            <Headline story={story} place={place} />
            <History story={story} {...props} />
            <Waterfall
              after={story.after}
              before={story.split === null ? null : story.before}
              picked={loss}
              addressOfLoss={(id) => addressOf({ ...place, loss: id === loss ? undefined : id })}
            />
          </>
        )}
      </Told>
      {loss !== null && <LossDetail {...props} loss={loss} split={story.split} />}
    </>
  );
}

function Headline({ story, place }: { story: Story; place: Place }) {
  const { split, before, after } = story;
  const [was, is] = [hitRate(before), hitRate(after)];
  const cause = split === null ? largest(after) : story.causes[0];
  const isFall = split !== null && was !== null && is !== null && was > is;
  return (
    <section class="panel headline" aria-label="What happened" data-testid="headline">
      <p>
        {split === null
          ? `Hit rate ${percent(is)} of ${count(after.prompt)} prompt tokens; it did not fall in this time range.`
          : `Hit rate ${percent(is)} since ${clock(split / 1000)}, ${percent(was)} before: ${points(is === null || was === null ? null : is - was)}.`}
      </p>
      {cause !== undefined && cause.points > 0 && (
        <p>
          {isFall ? 'Most of the fall: ' : 'Most is lost at: '}
          <a data-testid="cause" href={addressOf({ ...place, loss: cause.id })}>
            {titleOfLayer(layerOf(cause.id))}: {reasonWords(cause.id).title}
          </a>{' '}
          <b>{isFall ? `${points(-cause.points)}` : `${percent(cause.points)} of prompt tokens`}</b>{' '}
          <span class="muted">{reasonWords(cause.id).means}</span>
        </p>
      )}
    </section>
  );
}

function largest(funnel: Funnel): { id: string; points: number } | undefined {
  return causes(funnel, EMPTY)[0];
}

function titleOfLayer(id: string): string {
  return LAYERS.find((layer) => layer.id === id)?.title ?? id;
}

function History({ story, place, go }: ViewProps & { story: Story }) {
  const { windows, split } = story;
  const loss = place.loss ?? story.causes[0]?.id;
  const chart = useMemo(() => {
    const shown = broken(windows);
    const lost = (window: Window) => (loss === undefined ? null : share(window, window.losses.get(loss)?.tokens ?? 0));
    return {
      x: shown.map(({ at }) => at / 1000),
      lines: [
        { label: 'hit rate', colour: '--series-2', values: shown.map(hitRate) },
        {
          label: 'seen before',
          colour: '--series-1',
          values: shown.map((window) => share(window, reached(window, 'potential'))),
        },
        ...(loss === undefined
          ? []
          : [{ label: `lost: ${reasonWords(loss).title}`, colour: '--series-3', values: shown.map(lost) }]),
      ],
    };
  }, [windows, loss]);
  const last = windows.length - 1;
  const index = windows.findIndex(({ at }) => split !== null && at >= split);
  return (
    <div class="stacked">
      <LineChart
        id="funnel-history"
        title="Hit rate"
        unit="of prompt tokens"
        {...chart}
        text={percent}
        axisText={percentMark}
        top={1}
        height={180}
        marks={split === null ? [] : [{ x: split / 1000, label: 'after' }]}
        onStretch={(from, to) =>
          go({ seconds: Math.max(1, Math.round(to - from)), until: Math.round(to * 1000), split: undefined })
        }
      />
      <div class="panel actions">
        <label for="split">Compare from</label>
        <input
          id="split"
          data-testid="split"
          type="range"
          min={Math.min(1, last)}
          max={Math.max(1, last)}
          value={index < 0 ? last : index}
          aria-valuetext={split === null ? 'no fall found' : clock(split / 1000)}
          onInput={(event) => {
            const at = windows[Number(event.currentTarget.value)]?.at;
            if (at !== undefined) go({ split: new Date(at).toISOString() }, 'quietly');
          }}
        />
        <span data-testid="split-time">{split === null ? 'no fall found' : clock(split / 1000)}</span>
        {place.split !== undefined && (
          <button type="button" onClick={() => go({ split: undefined })}>
            Find the fall
          </button>
        )}
        <span class="muted">drag over the chart to narrow the time range</span>
      </div>
    </div>
  );
}
