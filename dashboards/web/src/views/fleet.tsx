// The fleet now: figures, the last five minutes, tiers, instances and the last decisions.
import { AtomChart } from '../components/atom_chart';
import { Decisions } from '../components/decisions';
import { Instances } from '../components/instances';
import { Heads, Panel, Scroll, Told } from '../components/panel';
import { Tiles } from '../components/tiles';
import { TimeCharts } from '../components/time_charts';
import { EXAMPLES } from '../examples';
import { instanceName } from '../fleet';
import { count, durationText, percent, rate, spoken } from '../format';
import { addressOf, inView } from '../place';
import { numberOf, textOf, type Row } from '../sql';
import { useRows } from '../use_rows';
import { OFTEN_MS, type ViewProps } from './view';

/** Tier and throttle step of requests that were refused before they were classed. */
const NOT_ASKED = 'none';

/** What waits is decided by the newest events: a request queued and neither dispatched nor ended since. */
const TIERS = `WITH d AS (
  SELECT * FROM request_distribution
  WHERE as_of = (SELECT max(as_of) FROM request_distribution) AND as_of > now() - INTERVAL '60 seconds'),
w AS (
  SELECT model, tier, count(*) AS queued FROM (
    SELECT request_id, max(model) AS model, max(tier) AS tier,
           bool_or(event = 'queued') AND NOT bool_or(event IN ('dispatched', 'rejected', 'cancelled', 'failed', 'finished')) AS waits
    FROM requests WHERE event <> 'grew' AND "at" > now() - INTERVAL '150 seconds' GROUP BY request_id)
  WHERE waits GROUP BY model, tier),
r AS (
  SELECT model, tier, count(*) AS refused FROM decisions
  WHERE outcome = 'reject' AND "at" > now() - INTERVAL '60 seconds' GROUP BY model, tier),
s AS (
  SELECT model, last_value(throttle_step ORDER BY "at") AS step FROM decisions
  WHERE throttle_step <> '${NOT_ASKED}' AND "at" > now() - INTERVAL '60 seconds' GROUP BY model),
g AS (SELECT model, tier FROM d UNION SELECT model, tier FROM w UNION SELECT model, tier FROM r)
SELECT g.model, g.tier, s.step, d.arrivals_per_second, d.concurrent_requests, w.queued, r.refused,
       d.output_tokens / d.window_seconds AS goodput, d.ttft_ms_p50, d.ttft_ms_p95, d.itl_ms_p50, d.itl_ms_p95,
       CAST(d.cached_tokens AS DOUBLE) / nullif(d.prompt_tokens, 0) AS hit_rate
FROM g LEFT JOIN s ON s.model = g.model
LEFT JOIN d ON d.model = g.model AND d.tier = g.tier
LEFT JOIN w ON w.model = g.model AND w.tier = g.tier
LEFT JOIN r ON r.model = g.model AND r.tier = g.tier
ORDER BY g.model, g.tier`;

const FAULTS = EXAMPLES.find(({ id }) => id === 'faults')?.query;

export function FleetView({ place, beat, fleet, history }: ViewProps) {
  return (
    <>
      <Tiles
        fleet={fleet}
        hitRateAddress={addressOf(inView(place, 'cache'))}
        faultsAddress={addressOf({ ...inView(place, 'sql'), query: FAULTS })}
      />
      <div class="charts">
        <TimeCharts history={history} />
        <AtomChart atoms={fleet?.atoms ?? null} />
      </div>
      <Tiers beat={beat} />
      <Instances instances={fleet?.instances ?? null} />
      <Decisions
        decisions={fleet?.decisions ?? null}
        nameOf={(id) => instanceName(fleet, id)}
        addressOfRequest={(request) => addressOf({ ...inView(place, 'requests'), request })}
      />
    </>
  );
}

function Tiers({ beat }: { beat: number | null }) {
  const answer = useRows(TIERS, beat, OFTEN_MS);
  return (
    <Panel id="tiers" title="Tiers" note="last minute; goodput counts tokens of requests that finished">
      <Told answer={answer} empty="no request came in the last minute">
        {() => (
          <Scroll label="Tiers">
            <table data-testid="tiers-table">
              <Heads
                names={[
                  'Model',
                  'Tier',
                  'Throttle step',
                  'Arrivals/s|number',
                  'Live|number',
                  'Queued|number',
                  'Refused|number',
                  'Goodput, tokens/s|number',
                  'TTFT p50|number',
                  'TTFT p95|number',
                  'ITL p50|number',
                  'ITL p95|number',
                  'Hit rate|number',
                ]}
              />
              <tbody>
                {answer.result?.rows.map((row, index) => (
                  <TierRow key={index} row={row} />
                ))}
              </tbody>
            </table>
          </Scroll>
        )}
      </Told>
    </Panel>
  );
}

function TierRow({ row }: { row: Row }) {
  const of = (name: string) => numberOf(row, name);
  return (
    <tr>
      <td>{textOf(row, 'model')}</td>
      <th scope="row">{textOf(row, 'tier') === NOT_ASKED ? 'not classed' : textOf(row, 'tier')}</th>
      <td>{spoken(textOf(row, 'step'))}</td>
      <td class="number">{rate(of('arrivals_per_second'))}</td>
      <td class="number">{count(of('concurrent_requests') ?? 0)}</td>
      <td class="number">{count(of('queued') ?? 0)}</td>
      <td class="number">{count(of('refused') ?? 0)}</td>
      <td class="number">{rate(of('goodput'))}</td>
      <td class="number">{durationText(of('ttft_ms_p50'))}</td>
      <td class="number">{durationText(of('ttft_ms_p95'))}</td>
      <td class="number">{durationText(of('itl_ms_p50'))}</td>
      <td class="number">{durationText(of('itl_ms_p95'))}</td>
      <td class="number">{percent(of('hit_rate'))}</td>
    </tr>
  );
}
