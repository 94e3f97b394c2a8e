// The fleet now: figures, the last five minutes, tiers, instances and the last decisions.
import { AtomChart } from '../components/atom_chart';
import { Decisions } from '../components/decisions';
import { Instances } from '../components/instances';
import { Heads, Panel, Scroll, Told } from '../components/panel';
import { Tiles } from '../components/tiles';
import { TimeCharts } from '../components/time_charts';
import { count, durationText, percent, rate } from '../format';
import { addressOf, inView } from '../place';
import { numberOf, textOf, type Row } from '../sql';
import { useRows } from '../use_rows';
import { OFTEN_MS, type ViewProps } from './view';

/** What waits is decided by the newest events: a request queued and neither dispatched nor ended since. */
const TIERS = `WITH newest AS (SELECT max(as_of) AS as_of FROM request_distribution),
waiting AS (
  SELECT model, tier, count(*) AS queued FROM (
    SELECT request_id, max(model) AS model, max(tier) AS tier,
           bool_or(event = 'queued') AND NOT bool_or(event IN ('dispatched', 'rejected', 'cancelled', 'failed', 'finished')) AS waits
    FROM requests WHERE "at" > now() - INTERVAL '150 seconds' GROUP BY request_id)
  WHERE waits GROUP BY model, tier),
refused AS (
  SELECT model, tier, count(*) AS refused FROM decisions
  WHERE outcome = 'reject' AND "at" > now() - INTERVAL '60 seconds' GROUP BY model, tier)
SELECT d.model, d.tier, d.arrivals_per_second, d.concurrent_requests, w.queued, r.refused,
       d.output_tokens / d.window_seconds AS goodput, d.ttft_ms_p50, d.ttft_ms_p95, d.itl_ms_p50, d.itl_ms_p95,
       CAST(d.cached_tokens AS DOUBLE) / nullif(d.prompt_tokens, 0) AS hit_rate
FROM request_distribution d JOIN newest n ON d.as_of = n.as_of
LEFT JOIN waiting w ON w.model = d.model AND w.tier = d.tier
LEFT JOIN refused r ON r.model = d.model AND r.tier = d.tier
WHERE d.as_of > now() - INTERVAL '60 seconds'
ORDER BY d.model, d.tier`;

export function FleetView({ place, beat, fleet, history }: ViewProps) {
  return (
    <>
      <Tiles fleet={fleet} hitRateAddress={addressOf(inView(place, 'cache'))} />
      <div class="charts">
        <TimeCharts history={history} />
        <AtomChart atoms={fleet?.atoms ?? null} />
      </div>
      <Tiers beat={beat} />
      <Instances instances={fleet?.instances ?? null} />
      <Decisions
        decisions={fleet?.decisions ?? null}
        instances={fleet?.instances ?? []}
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
      <th scope="row">{textOf(row, 'tier')}</th>
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
