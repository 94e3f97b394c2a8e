// The fleet in eight numbers, each with its unit. Unknown is a dash.
import type { ComponentChildren } from 'preact';
import { UNKNOWN, count, duration, durationText, percent, rate, spoken } from '../format';
import type { Fleet, Known, Quantiles } from '../fleet';

interface Props {
  fleet: Fleet | null;
  /** Where the hit rate is explained, and where the faults are listed. */
  hitRateAddress: string;
  faultsAddress: string;
}

export function Tiles({ fleet, hitRateAddress, faultsAddress }: Props) {
  return (
    <section class="tiles" aria-label="Fleet now">
      <Tile label="Output" unit="tokens/s" id="tokens-per-second" value={rate(fleet?.tokensPerSecond ?? null)}>
        prompt <b data-testid="prompt-tokens-per-second">{rate(fleet?.promptTokensPerSecond ?? null)}</b> tokens/s
      </Tile>
      <Tile label="Requests" unit="/s" id="requests-per-second" value={rate(fleet?.requestsPerSecond ?? null)}>
        over the whole fleet
      </Tile>
      <LatencyTile label="Time to first token" id="ttft" quantiles={fleet?.ttftMs ?? null} />
      <LatencyTile label="Inter-token latency" id="itl" quantiles={fleet?.itlMs ?? null} />
      <Tile label="Cache hit rate" unit="" id="hit-rate" value={percent(fleet?.hitRate ?? null)}>
        of prompt tokens, last minute;{' '}
        <a data-testid="why" href={hitRateAddress}>
          why?
        </a>
      </Tile>
      <Tile label="Running" unit="requests" id="running" value={count(fleet?.running ?? null)}>
        waiting <b data-testid="waiting">{count(fleet?.waiting ?? null)}</b>
      </Tile>
      <ThrottleTile step={fleet?.throttleStep ?? null} />
      <FaultsTile faults={fleet?.faults ?? null} address={faultsAddress} />
    </section>
  );
}

interface TileProps {
  label: string;
  unit: string;
  /** data-testid of the number. */
  id: string;
  value: string;
  tone?: 'good' | 'warn' | 'bad';
  children?: ComponentChildren;
}

function Tile({ label, unit, id, value, tone, children }: TileProps) {
  return (
    <div class="tile" data-tone={tone}>
      <h2>{label}</h2>
      <p class="figure">
        <span data-testid={id}>{value}</span>
        {unit !== '' && <span class="unit"> {unit}</span>}
      </p>
      <p class="detail">{children}</p>
    </div>
  );
}

function LatencyTile({ label, id, quantiles }: { label: string; id: string; quantiles: Quantiles | null }) {
  const p50 = duration(quantiles?.p50 ?? null);
  return (
    <div class="tile">
      <h2>{label}</h2>
      <p class="figure">
        <span data-testid={`${id}-p50`}>{p50.value}</span>
        <span class="unit"> {p50.unit} p50</span>
      </p>
      <p class="detail">
        p95 <b data-testid={`${id}-p95`}>{durationText(quantiles?.p95 ?? null)}</b>
        <br />
        p99 <b data-testid={`${id}-p99`}>{durationText(quantiles?.p99 ?? null)}</b>
      </p>
    </div>
  );
}

function ThrottleTile({ step }: { step: string | null }) {
  const open = step === 'open';
  const tone = step === null ? {} : { tone: open ? ('good' as const) : ('warn' as const) };
  return (
    <Tile label="Throttle step" unit="" id="throttle-step" value={spoken(step)} {...tone}>
      {step === null ? UNKNOWN : open ? 'nothing held back' : 'load is being held back'}
    </Tile>
  );
}

function FaultsTile({ faults, address }: { faults: Known; address: string }) {
  const tone = faults === null ? {} : { tone: faults > 0 ? ('bad' as const) : ('good' as const) };
  return (
    <Tile label="Faults" unit="" id="faults" value={count(faults)} {...tone}>
      of Evenkeel itself
      {faults !== null && faults > 0 && (
        <>
          ; <a href={address}>which?</a>
        </>
      )}
    </Tile>
  );
}
