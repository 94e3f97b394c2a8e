// SQL through POST /sql: running a statement, the shape of its result, the examples, and the charts' first five
// minutes.
import { call } from './api';
import { unknownAt, WINDOW_SECONDS, type Point } from './history';

export type Row = Record<string, unknown>;

export type ColumnType = 'number' | 'boolean' | 'time' | 'text' | 'nested';

export interface Column {
  name: string;
  type: ColumnType;
}

export interface Result {
  columns: Column[];
  rows: Row[];
  /** From sending the statement to having parsed the answer, milliseconds. */
  tookMs: number;
}

export async function runSql(query: string, signal: AbortSignal): Promise<Result> {
  const started = performance.now();
  const rows = (await (await post(query, 'application/json', signal)).json()) as unknown;
  if (!Array.isArray(rows)) throw new Error('The server answered with JSON that is not an array of rows.');
  return { columns: columnsOf(rows as Row[]), rows: rows as Row[], tookMs: performance.now() - started };
}

export async function csvOf(query: string, signal: AbortSignal): Promise<Blob> {
  return (await post(query, 'text/csv', signal)).blob();
}

function post(query: string, accept: string, signal: AbortSignal): Promise<Response> {
  const headers = { 'Content-Type': 'application/json', Accept: accept };
  return call('sql', { method: 'POST', headers, body: JSON.stringify({ query }), signal });
}

/** Columns in the order in which rows first name them (NULLs may be left out), with the type all values share. */
export function columnsOf(rows: readonly Row[]): Column[] {
  const types = new Map<string, ColumnType | null>();
  for (const row of rows) {
    for (const [name, value] of Object.entries(row)) {
      const seen = types.get(name);
      const type = typeOf(value);
      if (seen === undefined || seen === null) types.set(name, type);
      else if (type !== null && type !== seen) types.set(name, 'text');
    }
  }
  return [...types].map(([name, type]) => ({ name, type: type ?? 'text' }));
}

const TIME = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})?$/;

function typeOf(value: unknown): ColumnType | null {
  if (value === null || value === undefined) return null;
  if (typeof value === 'number') return 'number';
  if (typeof value === 'boolean') return 'boolean';
  if (typeof value === 'string') return TIME.test(value) ? 'time' : 'text';
  return 'nested';
}

/** A cell's text: numbers with every digit, nested values as JSON. `null` for NULL. */
export function cellText(value: unknown): string | null {
  if (value === null || value === undefined) return null;
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** A string as a SQL literal. */
export function literal(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}

/** The statement that explains a request (SPEC X3): its decisions with their inputs and every candidate. */
export function explaining(request: string): string {
  return `SELECT * FROM decisions WHERE request_id = ${literal(request)} ORDER BY "at"`;
}

const HISTORY = `SELECT date_trunc('second', "at") AS second,
       sum(decode_tokens) AS decode_tokens, sum(prefill_tokens) AS prefill_tokens
FROM engine_steps
WHERE "at" >= date_trunc('second', now() - INTERVAL '${WINDOW_SECONDS} seconds') AND "at" < date_trunc('second', now())
GROUP BY 1 ORDER BY 1`;

/** Token rates of the last five minutes, one point a second, from the steps the engines have recorded. */
export async function tokenHistory(signal: AbortSignal): Promise<Point[]> {
  return historyPoints((await runSql(HISTORY, signal)).rows);
}

/** A second without a step between two with one had 0 tokens. Before the first nothing is known: no point. */
export function historyPoints(rows: readonly Row[]): Point[] {
  const points: Point[] = [];
  for (const row of rows) {
    const at = instantSeconds(row['second']);
    const last = points.at(-1);
    if (at === null || (last !== undefined && at <= last.at)) continue;
    const first = last === undefined ? at : Math.max(last.at + 1, at - WINDOW_SECONDS);
    for (let idle = first; idle < at; idle++) {
      points.push({ ...unknownAt(idle), tokensPerSecond: 0, promptTokensPerSecond: 0 });
    }
    points.push({
      ...unknownAt(at),
      tokensPerSecond: finite(row['decode_tokens']),
      promptTokensPerSecond: finite(row['prefill_tokens']),
    });
  }
  return points;
}

/** Seconds since the epoch of a timestamp as /sql writes it; one without a zone is UTC. */
function instantSeconds(value: unknown): number | null {
  if (typeof value !== 'string' || !TIME.test(value)) return null;
  const ms = Date.parse(/(Z|[+-]\d{2}:\d{2})$/.test(value) ? value : `${value}Z`);
  return Number.isNaN(ms) ? null : Math.floor(ms / 1000);
}

function finite(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

export interface Example {
  id: string;
  label: string;
  query: string;
}

export const EXAMPLES: readonly Example[] = [
  {
    id: 'latency',
    label: 'TTFT by tier',
    query: `SELECT tier, count(*) AS requests,
       approx_percentile_cont(gap_us / 1000.0, 0.5) AS ttft_p50_ms,
       approx_percentile_cont(gap_us / 1000.0, 0.95) AS ttft_p95_ms
FROM requests
WHERE event = 'first_token'
GROUP BY tier ORDER BY tier`,
  },
  {
    id: 'instances',
    label: 'Work per instance',
    query: `SELECT instance, count(*) AS steps, sum(decode_tokens) AS decode_tokens,
       sum(prefill_tokens) AS prefill_tokens, avg(step_us) / 1000.0 AS mean_step_ms
FROM engine_steps
WHERE "at" >= now() - INTERVAL '1 minute'
GROUP BY instance ORDER BY instance`,
  },
  {
    id: 'hits',
    label: 'Cache hit rate',
    query: `SELECT instance, sum(cached_tokens) AS cached_tokens, sum(scheduled_prompt_tokens) AS prompt_tokens,
       CAST(sum(cached_tokens) AS DOUBLE) / nullif(sum(scheduled_prompt_tokens), 0) AS hit_rate
FROM engine_steps
GROUP BY instance ORDER BY instance`,
  },
  {
    id: 'decisions',
    label: 'Last decisions',
    query: `SELECT "at", request_id, tier, outcome, instance, reason, predicted_hit_tokens, predicted_seconds
FROM decisions
ORDER BY "at" DESC LIMIT 50`,
  },
  {
    id: 'refusals',
    label: 'Refusals',
    query: `SELECT outcome, throttle_step, reason, count(*) AS decisions
FROM decisions
WHERE outcome <> 'admit'
GROUP BY outcome, throttle_step, reason ORDER BY decisions DESC`,
  },
  {
    id: 'faults',
    label: 'Faults',
    query: `SELECT "at", component, kind, detail, count
FROM faults
ORDER BY "at" DESC LIMIT 50`,
  },
  {
    id: 'columns',
    label: 'Tables and columns',
    query: `SELECT table_name, column_name, data_type
FROM information_schema.columns
WHERE table_schema = 'public'
ORDER BY table_name, ordinal_position`,
  },
];
