// How the fleet grew and shrank: each instance's states over time, how many were ready, and arrivals with their forecast
// (SPEC A5, A6).
import { useMemo } from 'preact/hooks';
import { LineChart } from '../components/line_chart';
import { NewestRows } from '../components/newest_rows';
import { Panel, Scroll, Told } from '../components/panel';
import { age, clock, count, countMark, rate } from '../format';
import { inRange, paceMs, stepSeconds, type Place } from '../place';
import { countOf, lanesOf, type Lane } from '../scaling';
import { literal, numberOf } from '../sql';
import { useRows } from '../use_rows';
import { OFTEN_MS, SELDOM_MS, type ViewProps } from './view';

/** Rows of before the range too: a state lasts until the next row. Bounded by the newest STATES_MAX. */
const STATES_MAX = 2000;

const STATES = `SELECT "at", instance, name, model, state, detail FROM instances ORDER BY "at" DESC LIMIT ${STATES_MAX}`;

function trend(place: Place): string {
  const filter = place.model === undefined ? '' : ` AND model = ${literal(place.model)}`;
  return `SELECT since, sum(arrivals) AS arrivals, sum(forecast) AS forecast, sum(forecast_high) AS high FROM (
  SELECT date_bin(INTERVAL '${Math.max(10, stepSeconds(place))} seconds', as_of) AS since, model,
         avg(arrivals / period_seconds) AS arrivals, avg(forecast) AS forecast, avg(forecast_high) AS forecast_high
  FROM arrival_trend WHERE ${inRange(place, 'as_of')}${filter} GROUP BY 1, 2)
GROUP BY since ORDER BY since`;
}

export function ScalingView(props: ViewProps) {
  const { place, beat, tables } = props;
  const answer = useRows(STATES, beat, OFTEN_MS);
  const to = place.until ?? beat;
  const from = to === null ? null : to - place.seconds * 1000;
  const lanes = useMemo(
    () => (from === null || to === null ? [] : lanesOf(answer.result?.rows ?? [], from, to)),
    [answer.result, from, to],
  );
  return (
    <>
      <Told answer={answer} empty="no instance has reported">
        {() => (from === null || to === null ? null : <Timeline lanes={lanes} from={from} to={to} />)}
      </Told>
      <Arrivals {...props} />
      <Panel id="scaling" title="What the scaler decided">
        {tables?.has('scaling') === true ? (
          <NewestRows table="scaling" beat={beat} where={inRange(place, 'at')} />
        ) : (
          <p class="empty" data-testid="no-scaling">
            {tables === null ? 'asking …' : 'This server has no scaler: the number of instances is workers.count.'}
          </p>
        )}
      </Panel>
    </>
  );
}

const STATE_COLOURS: Record<string, string> = {
  ready: '--good',
  starting: '--series-1',
  draining: '--warn',
  dead: '--bad',
  stopped: '--muted',
};

function Timeline({ lanes, from, to }: { lanes: readonly Lane[]; from: number; to: number }) {
  const ready = useMemo(() => countOf(lanes, 'ready', from), [lanes, from]);
  const chart = useMemo(
    () => ({
      x: ready.map(([at]) => at / 1000),
      lines: [{ label: 'ready', colour: '--good', shape: 'steps' as const, values: withoutEnd(ready, to) }],
    }),
    [ready, to],
  );
  return (
    <>
      <Panel
        id="timeline"
        title="Instances over time"
        note={Object.entries(STATE_COLOURS).map(([state, colour]) => (
          <span key={state}>
            <i class="swatch" style={{ background: `var(${colour})` }} /> {state}
          </span>
        ))}
      >
        <Scroll label="Instances over time">
          <table class="timeline" data-testid="timeline">
            <tbody>
              {lanes.map((lane) => (
                <tr key={lane.instance}>
                  <th scope="row">{lane.name}</th>
                  <td>
                    <span class="track">
                      {lane.stretches.map((stretch) => (
                        <i
                          key={stretch.from}
                          title={`${stretch.state} for ${age(stretch.to - stretch.from)} from ${clock(stretch.from / 1000)}${stretch.detail === '' ? '' : `: ${stretch.detail}`}`}
                          style={{
                            left: `${((stretch.from - from) / (to - from)) * 100}%`,
                            width: `${((stretch.to - stretch.from) / (to - from)) * 100}%`,
                            background: `var(${STATE_COLOURS[stretch.state] ?? '--muted'})`,
                          }}
                        />
                      ))}
                    </span>
                  </td>
                  <td>{lane.stretches.at(-1)?.state}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
        <p class="muted ends">
          <span>{clock(from / 1000)}</span>
          <span>{clock(to / 1000)}</span>
        </p>
      </Panel>
      <LineChart
        id="ready"
        title="Instances ready"
        x={chart.x}
        lines={chart.lines}
        range={[from / 1000, to / 1000]}
        text={count}
        axisText={(value) => (Number.isInteger(value) ? String(value) : '')}
        empty="no instance was ready"
      />
    </>
  );
}

/** At the end of the range every stretch ends; what holds there is the number before. */
function withoutEnd(steps: readonly [number, number][], to: number): number[] {
  return steps.map(([at, number], index) => (at >= to ? (steps[index - 1]?.[1] ?? number) : number));
}

function Arrivals({ place, beat }: ViewProps) {
  const answer = useRows(trend(place), beat, paceMs(place, SELDOM_MS));
  const chart = useMemo(() => {
    const rows = answer.result?.rows ?? [];
    const of = (name: string) => rows.map((row) => numberOf(row, name));
    return {
      x: rows.map((row) => (numberOf(row, 'since') ?? 0) / 1000),
      lines: [
        { label: 'arrived', colour: '--series-1', values: of('arrivals') },
        { label: 'forecast', colour: '--series-2', values: of('forecast') },
        { label: 'at most (95 %)', colour: '--series-3', values: of('high') },
      ],
    };
  }, [answer.result]);
  return (
    <LineChart
      id="arrivals"
      title="Arrivals and their forecast"
      unit="requests/s"
      x={chart.x}
      lines={chart.lines}
      text={rate}
      axisText={countMark}
      empty={answer.problem ?? (answer.result === null ? 'asking …' : 'no arrivals in this time range')}
    />
  );
}
