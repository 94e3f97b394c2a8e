// Why the slowest requests were slow (SPEC D4): the newest verdict of each model, its evidence, and the requests.
import { Panel, Told } from '../components/panel';
import { clock, durationText, percent } from '../format';
import { addressOf, inRange, paceMs, type Place } from '../place';
import { literal, numberOf, textOf, type Row } from '../sql';
import { useRows } from '../use_rows';
import { SELDOM_MS, type ViewProps } from './view';

function newest(place: Place): string {
  const model = place.model === undefined ? '' : ` AND model = ${literal(place.model)}`;
  return `SELECT d.* FROM diagnosis d JOIN (
  SELECT model, max(as_of) AS as_of FROM diagnosis
  WHERE requests > 0 AND ${inRange(place, 'as_of')}${model} GROUP BY model) n
ON d.model = n.model AND d.as_of = n.as_of ORDER BY d.model`;
}

const VERDICTS: Record<string, string> = {
  scheduling: 'They waited: queue and scheduling took most of their time.',
  iteration_spikes: 'Single engine steps took much longer than they should.',
  bandwidth: 'Decode steps were slower than their context explains: bandwidth.',
  clear: 'Nothing stands out.',
  too_little: 'Too few steps to judge by.',
};

export function Diagnosis({ place, beat }: ViewProps) {
  const answer = useRows(newest(place), beat, paceMs(place, SELDOM_MS));
  return (
    <Panel id="diagnosis" title="Why the slowest were slow" note="newest window with finished requests">
      <Told answer={answer} empty="no request finished in this time range">
        {() => answer.result?.rows.map((row) => <Verdict key={textOf(row, 'model')} row={row} place={place} />)}
      </Told>
    </Panel>
  );
}

function Verdict({ row, place }: { row: Row; place: Place }) {
  const of = (name: string) => numberOf(row, name);
  const verdict = textOf(row, 'verdict') ?? '';
  const slowest = of('slow_from_seconds');
  const worst = Array.isArray(row['worst_requests']) ? (row['worst_requests'] as string[]) : [];
  return (
    <div class="decision" data-testid="verdict">
      <p>
        <b>{textOf(row, 'model')}</b>, {clock((of('as_of') ?? 0) / 1000)}: {VERDICTS[verdict] ?? verdict}{' '}
        <span class="muted">
          Waiting {percent(of('queue_share'))} of the time of requests of{' '}
          {durationText(slowest === null ? null : slowest * 1000)} and more, spikes {percent(of('spike_share'))} of step
          time, decode {percent(of('decode_ratio'))} of what was predicted.
        </span>
      </p>
      {worst.length > 0 && (
        <p>
          slowest:{' '}
          {worst.map((request) => (
            <span key={request}>
              <a class="id" href={addressOf({ ...place, request })}>
                {request}
              </a>{' '}
            </span>
          ))}
        </p>
      )}
    </div>
  );
}
