// The `fleet` event of GET /v1/live: its shape, and the one place where untrusted JSON becomes that shape.
//
// Invariant: a number that is missing, null, not finite or of another type is `null` here (unknown), never 0.
// Bounds: at most INSTANCES_MAX instances, ATOMS_MAX atoms and DECISIONS_MAX decisions are kept; the rest is cut off.
import { UNKNOWN } from './format';

export const INSTANCES_MAX = 512;
export const ATOMS_MAX = 4096;
export const DECISIONS_MAX = 50;

/** A number from the server, or `null` where it is unknown. */
export type Known = number | null;

/** Milliseconds at three quantiles. */
export interface Quantiles {
  p50: Known;
  p95: Known;
  p99: Known;
}

export interface Instance {
  instance: number;
  name: string;
  model: string;
  state: string;
  running: Known;
  waiting: Known;
  contextTokens: Known;
  blocksUsed: Known;
  blocksCached: Known;
  blocksTotal: Known;
  tokensPerSecond: Known;
  /** Share of the fleet's context tokens, 0 to 1. */
  share: Known;
  /** Predicted time to compute the prompts that wait there, seconds. */
  loadSeconds: Known;
}

/** Live load in one 500-token range of context length. */
export interface Atom {
  fromTokens: number;
  toTokens: number;
  tokens: number;
  requests: number;
}

export interface Decision {
  at: string;
  request: string;
  tier: string;
  outcome: string;
  instance: Known;
  reason: string;
  predictedHitTokens: Known;
  predictedSeconds: Known;
}

export interface Fleet {
  /** When the server's numbers were true, milliseconds since the epoch. */
  asOfMs: number;
  viewMode: string | null;
  throttleStep: string | null;
  tokensPerSecond: Known;
  promptTokensPerSecond: Known;
  requestsPerSecond: Known;
  ttftMs: Quantiles;
  itlMs: Quantiles;
  /** 0 to 1 over the last minute. */
  hitRate: Known;
  running: Known;
  waiting: Known;
  faults: Known;
  instances: Instance[];
  atoms: Atom[];
  decisions: Decision[];
}

/** The instances of a model, or all. */
export function instancesOf(fleet: Fleet | null, model: string | undefined): Instance[] {
  return (fleet?.instances ?? []).filter((one) => model === undefined || one.model === model);
}

/** An instance's name, its number while the stream has not told it, a dash for none. */
export function instanceName(fleet: Fleet | null, id: Known): string {
  if (id === null) return UNKNOWN;
  return fleet?.instances.find(({ instance }) => instance === id)?.name ?? `#${id}`;
}

type Fields = Record<string, unknown>;

/** Reads one `fleet` event. Throws an `Error` that names what is wrong when it is not JSON or has no usable `as_of`. */
export function parseFleet(text: string): Fleet {
  const fields = fieldsOf(JSON.parse(text));
  if (fields === null) throw new Error('the fleet event is not a JSON object');
  const asOfMs = typeof fields['as_of'] === 'string' ? Date.parse(fields['as_of']) : Number.NaN;
  if (!Number.isFinite(asOfMs)) {
    throw new Error(`the fleet event's as_of is ${JSON.stringify(fields['as_of'])}, not an RFC 3339 time`);
  }
  return {
    asOfMs,
    viewMode: words(fields['view_mode']),
    throttleStep: words(fields['throttle_step']),
    tokensPerSecond: known(fields['tokens_per_second']),
    promptTokensPerSecond: known(fields['prompt_tokens_per_second']),
    requestsPerSecond: known(fields['requests_per_second']),
    ttftMs: quantiles(fields['ttft_ms']),
    itlMs: quantiles(fields['itl_ms']),
    hitRate: known(fields['hit_rate']),
    running: known(fields['running']),
    waiting: known(fields['waiting']),
    faults: known(fields['faults']),
    instances: list(fields['instances'], INSTANCES_MAX, instance),
    atoms: list(fields['atoms'], ATOMS_MAX, atom),
    decisions: list(fields['decisions'], DECISIONS_MAX, decision),
  };
}

function instance(fields: Fields): Instance | null {
  const id = known(fields['instance']);
  if (id === null) return null;
  return {
    instance: id,
    name: words(fields['name']) ?? `#${id}`,
    model: words(fields['model']) ?? '',
    state: words(fields['state']) ?? 'unknown',
    running: known(fields['running']),
    waiting: known(fields['waiting']),
    contextTokens: known(fields['context_tokens']),
    blocksUsed: known(fields['blocks_used']),
    blocksCached: known(fields['blocks_cached']),
    blocksTotal: known(fields['blocks_total']),
    tokensPerSecond: known(fields['tokens_per_second']),
    share: known(fields['share']),
    loadSeconds: known(fields['load_seconds']),
  };
}

function atom(fields: Fields): Atom | null {
  const fromTokens = known(fields['from_tokens']);
  const toTokens = known(fields['to_tokens']);
  const tokens = known(fields['tokens']);
  if (fromTokens === null || toTokens === null || tokens === null || toTokens <= fromTokens) return null;
  return { fromTokens, toTokens, tokens, requests: known(fields['requests']) ?? 0 };
}

function decision(fields: Fields): Decision | null {
  const at = words(fields['at']);
  const request = words(fields['request']);
  if (at === null || request === null) return null;
  return {
    at,
    request,
    tier: words(fields['tier']) ?? '',
    outcome: words(fields['outcome']) ?? '',
    instance: known(fields['instance']),
    reason: words(fields['reason']) ?? '',
    predictedHitTokens: known(fields['predicted_hit_tokens']),
    predictedSeconds: known(fields['predicted_seconds']),
  };
}

function quantiles(value: unknown): Quantiles {
  const fields = fieldsOf(value) ?? {};
  return { p50: known(fields['p50']), p95: known(fields['p95']), p99: known(fields['p99']) };
}

function list<T>(value: unknown, most: number, read: (fields: Fields) => T | null): T[] {
  if (!Array.isArray(value)) return [];
  return value.slice(0, most).flatMap((entry) => {
    const fields = fieldsOf(entry);
    const item = fields === null ? null : read(fields);
    return item === null ? [] : [item];
  });
}

function fieldsOf(value: unknown): Fields | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Fields) : null;
}

function known(value: unknown): Known {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

function words(value: unknown): string | null {
  return typeof value === 'string' && value !== '' ? value : null;
}
