// SQL through POST /sql: running a statement, downloads, pieces of statements, and reading cells.
import { call } from './api';
import { readArrow, type ColumnType, type Row, type Table } from './arrow';
import type { Known } from './fleet';
import { unknownAt, WINDOW_SECONDS, type Point } from './history';

export type { Column, ColumnType, Row } from './arrow';

export interface Result extends Table {
  /** From sending the statement to having read the answer, milliseconds. */
  tookMs: number;
}

const ARROW = 'application/vnd.apache.arrow.stream';

export type FileKind = 'csv' | 'arrow';

export async function runSql(query: string, signal: AbortSignal): Promise<Result> {
  const started = performance.now();
  const bytes = new Uint8Array(await (await post(query, ARROW, signal)).arrayBuffer());
  return { ...readArrow(bytes), tookMs: performance.now() - started };
}

/** The answer as a file. */
export async function fileOf(query: string, kind: FileKind, signal: AbortSignal): Promise<Blob> {
  return (await post(query, kind === 'csv' ? 'text/csv' : ARROW, signal)).blob();
}

function post(query: string, accept: string, signal: AbortSignal): Promise<Response> {
  const headers = { 'Content-Type': 'application/json', Accept: accept };
  return call('sql', { method: 'POST', headers, body: JSON.stringify({ query }), signal });
}

/** A cell's number, or `null` where it has none. */
export function numberOf(row: Row | undefined, name: string): Known {
  const value = row?.[name];
  return typeof value === 'number' ? value : null;
}

/** A cell's text, or `null`. */
export function textOf(row: Row | undefined, name: string): string | null {
  const value = row?.[name];
  return typeof value === 'string' ? value : null;
}

/** How a cell is shown: numbers with every digit, times as RFC 3339, nested values as JSON. `null` for NULL. */
export function cellText(value: unknown, type: ColumnType = 'text'): string | null {
  if (value === null || value === undefined) return null;
  if (type === 'time' && typeof value === 'number') return instant(value);
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** RFC 3339 with microseconds, of milliseconds since the epoch. */
export function instant(ms: number): string {
  const micros = Math.round(ms * 1000);
  const seconds = new Date(Math.floor(micros / 1e6) * 1000).toISOString().slice(0, 19);
  return `${seconds}.${String(((micros % 1e6) + 1e6) % 1e6).padStart(6, '0')}Z`;
}

/** A string as a SQL literal. */
export function literal(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}

/** The statement that explains a request (SPEC X3): its decisions with their inputs and every candidate. */
export function explaining(request: string): string {
  return `SELECT * FROM decisions WHERE request_id = ${literal(request)} ORDER BY "at"`;
}

/** The hit rate of a moment is over the minute before it. */
const MINUTE_SECONDS = 60;

const HISTORY = `SELECT date_trunc('second', "at") AS second,
       sum(decode_tokens) AS decode_tokens, sum(prefill_tokens) AS prefill_tokens,
       sum(cached_tokens) AS cached_tokens, sum(scheduled_prompt_tokens) AS prompt_tokens
FROM engine_steps
WHERE "at" >= date_trunc('second', now() - INTERVAL '${WINDOW_SECONDS + MINUTE_SECONDS} seconds') AND "at" < date_trunc('second', now())
GROUP BY 1 ORDER BY 1`;

/** Token rates and hit rate of the last five minutes, one point a second, from the steps the engines have recorded. */
export async function tokenHistory(signal: AbortSignal): Promise<Point[]> {
  return historyPoints((await runSql(HISTORY, signal)).rows);
}

/** A second without a step between two with one had 0 tokens. Before the first nothing is known: no point. */
export function historyPoints(rows: readonly Row[]): Point[] {
  const points: Point[] = [];
  const rateAt = hitRates(rows);
  for (const row of rows) {
    const ms = numberOf(row, 'second');
    const at = ms === null ? null : Math.floor(ms / 1000);
    const last = points.at(-1);
    if (at === null || (last !== undefined && at <= last.at)) continue;
    const first = last === undefined ? at : Math.max(last.at + 1, at - WINDOW_SECONDS);
    for (let idle = first; idle < at; idle++) {
      points.push({ ...unknownAt(idle), tokensPerSecond: 0, promptTokensPerSecond: 0, hitRate: rateAt(idle) });
    }
    points.push({
      ...unknownAt(at),
      tokensPerSecond: numberOf(row, 'decode_tokens'),
      promptTokensPerSecond: numberOf(row, 'prefill_tokens'),
      hitRate: rateAt(at),
    });
  }
  return points;
}

/** Reused over scheduled prompt tokens in the minute up to a second; asked for in order of time. */
function hitRates(rows: readonly Row[]): (at: number) => Known {
  const seconds = rows.map((row) => ({
    at: (numberOf(row, 'second') ?? 0) / 1000,
    cached: numberOf(row, 'cached_tokens') ?? 0,
    prompt: numberOf(row, 'prompt_tokens') ?? 0,
  }));
  let [first, next, cached, prompt] = [0, 0, 0, 0];
  return (at) => {
    for (let one = seconds[next]; one !== undefined && one.at <= at; one = seconds[++next]) {
      cached += one.cached;
      prompt += one.prompt;
    }
    for (let one = seconds[first]; one !== undefined && one.at <= at - MINUTE_SECONDS; one = seconds[++first]) {
      cached -= one.cached;
      prompt -= one.prompt;
    }
    return prompt > 0 ? cached / prompt : null;
  };
}
