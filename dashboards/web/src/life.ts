// One request's life from its rows (SPEC X3): phases in time, its decisions with every candidate, and how the
// prediction came out. Pure.
import { numberOf, textOf, type Row } from './sql';
import type { Known } from './fleet';

/** An id says when it was made (UUID version 7). Milliseconds since the epoch, or `null` for another id. */
export function timeOfId(id: string): number | null {
  const hex = /^(?:req|dec)-([0-9a-f]{12})7[0-9a-f]{19}$/.exec(id)?.[1];
  const ms = hex === undefined ? null : Number.parseInt(hex, 16);
  // Far beyond any id of ours, and still a date.
  return ms === null || ms >= 2 ** 47 ? null : ms;
}

export interface Phase {
  id: 'decide' | 'queue' | 'first' | 'generate';
  /** Milliseconds since the request came. */
  from: number;
  to: number;
  instance: Known;
}

export interface Life {
  request: string;
  model: string;
  tier: string;
  tenant: string;
  /** When it came, milliseconds since the epoch. */
  arrived: number;
  promptTokens: Known;
  outputTokens: Known;
  cachedTokens: Known;
  /** Milliseconds. */
  ttft: Known;
  total: Known;
  end: string | null;
  error: string | null;
  phases: Phase[];
  /** When each token or group of tokens came, milliseconds since the request came. */
  tokens: number[];
}

export function lifeOf(rows: readonly Row[]): Life | null {
  const events = [...rows].sort((a, b) => (numberOf(a, 'seq') ?? 0) - (numberOf(b, 'seq') ?? 0));
  const [first, last] = [events[0], events.at(-1)];
  const arrived = numberOf(first, 'at');
  if (first === undefined || arrived === null) return null;
  const of = (name: string) => events.find((row) => textOf(row, 'event') === name);
  const gap = numberOf(of('first_token'), 'gap_us');
  const total = numberOf(last, 'total_us');
  return {
    request: textOf(first, 'request_id') ?? '',
    model: textOf(first, 'model') ?? '',
    tier: textOf(last, 'tier') ?? '',
    tenant: textOf(first, 'tenant') ?? '',
    arrived,
    promptTokens: numberOf(first, 'prompt_tokens'),
    outputTokens: numberOf(last, 'output_tokens'),
    cachedTokens: numberOf(last, 'cached_tokens'),
    ttft: gap === null ? null : gap / 1000,
    total: total === null ? null : total / 1000,
    end: ENDS.has(textOf(last, 'event') ?? '') ? textOf(last, 'event') : null,
    error: textOf(last, 'error'),
    phases: phasesOf(events, arrived),
    tokens: events.flatMap((row) =>
      ['first_token', 'grew'].includes(textOf(row, 'event') ?? '') ? [(numberOf(row, 'at') ?? arrived) - arrived] : [],
    ),
  };
}

const ENDS = new Set(['finished', 'cancelled', 'failed', 'rejected']);

/** What a request is in after an event. */
const AFTER: Record<string, Phase['id']> = {
  arrived: 'decide',
  queued: 'queue',
  dispatched: 'first',
  first_token: 'generate',
  grew: 'generate',
};

function phasesOf(events: readonly Row[], arrived: number): Phase[] {
  const phases: Phase[] = [];
  let open: Phase | null = null;
  for (const row of events) {
    const at: number = (numberOf(row, 'at') ?? arrived) - arrived;
    const next: Phase['id'] | undefined = AFTER[textOf(row, 'event') ?? ''];
    const instance = numberOf(row, 'instance');
    if (open !== null) open.to = Math.max(open.from, at);
    if (open !== null && open.id === next && open.instance === instance) continue;
    open = next === undefined ? null : { id: next, from: at, to: at, instance };
    if (open !== null) phases.push(open);
  }
  return phases;
}

export interface Candidate {
  instance: number;
  chosen: boolean;
  hitTokens: Known;
  /** Terms of its cost that the table names, in seconds; the sum is what candidates are compared by. */
  terms: { name: string; seconds: number }[];
  total: Known;
  /** One standard deviation of the sum, seconds; `null` where the table has none. */
  error: Known;
  /** By which candidates are compared, seconds, where that is not the sum. */
  compared: Known;
}

export interface Decision {
  at: number;
  id: string;
  outcome: string;
  tier: string;
  tierReason: string;
  reason: string;
  policy: string;
  throttleStep: string;
  viewMode: string;
  /** Age of the views that were read, milliseconds. */
  viewAge: Known;
  saturation: Known;
  predictedTtft: Known;
  predictedHitTokens: Known;
  candidates: Candidate[];
}

export function decisionsOf(rows: readonly Row[]): Decision[] {
  return rows.map((row) => {
    const [at, viewAsOf] = [numberOf(row, 'at') ?? 0, numberOf(row, 'view_as_of')];
    const seconds = numberOf(row, 'predicted_seconds');
    const list = Array.isArray(row['candidates']) ? (row['candidates'] as Row[]) : [];
    return {
      at,
      id: textOf(row, 'decision_id') ?? '',
      outcome: textOf(row, 'outcome') ?? '',
      tier: textOf(row, 'tier') ?? '',
      tierReason: textOf(row, 'tier_reason') ?? '',
      reason: textOf(row, 'reason') ?? '',
      policy: textOf(row, 'route_policy') ?? '',
      throttleStep: textOf(row, 'throttle_step') ?? '',
      viewMode: textOf(row, 'view_mode') ?? '',
      viewAge: viewAsOf === null ? null : at - viewAsOf,
      saturation: numberOf(row, 'saturation'),
      predictedTtft: seconds === null ? null : seconds * 1000,
      predictedHitTokens: numberOf(row, 'predicted_hit_tokens'),
      candidates: list.map((one) => candidateOf(one, numberOf(row, 'instance'))).sort(byCost),
    };
  });
}

const cost = ({ compared, total }: Candidate) => compared ?? total ?? Infinity;
const byCost = (a: Candidate, b: Candidate) => cost(a) - cost(b);

/** Columns `…_seconds` that are no terms: the sum, what is compared, and the uncertainty of a term or of the sum. */
const NO_TERM = /^(total|compared|error|.*_error)$/;

/** Every other column `…_seconds` is a term, so that a term that is added to the table shows here too. */
function candidateOf(row: Row, chosen: Known): Candidate {
  const instance = numberOf(row, 'instance') ?? -1;
  const terms = Object.keys(row).flatMap((column) => {
    const seconds = numberOf(row, column);
    const name = /^(.*)_seconds$/.exec(column)?.[1];
    return name === undefined || NO_TERM.test(name) || seconds === null ? [] : [{ name, seconds }];
  });
  return {
    instance,
    chosen: instance === chosen,
    hitTokens: numberOf(row, 'hit_tokens'),
    terms,
    total: numberOf(row, 'total_seconds'),
    error: numberOf(row, 'error_seconds'),
    compared: numberOf(row, 'compared_seconds'),
  };
}
