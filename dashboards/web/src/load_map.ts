// The load map: context tokens by instance and range of context length, and the cuts between buckets. Pure.
//
// Bound: COLUMNS_MAX ranges; longer contexts are drawn with wider ranges, each a whole number of atoms.
import { numberOf, type Row } from './sql';

export const COLUMNS_MAX = 24;

export interface LoadMap {
  /** Width of one range, tokens. */
  width: number;
  /** Starts of the ranges. */
  starts: number[];
  instances: { instance: number; tokens: number[]; requests: number[]; total: number }[];
  totals: number[];
}

/** From rows of `instance, from_tokens, to_tokens, tokens, requests`. */
export function loadMapOf(rows: readonly Row[], instances: readonly number[], most = COLUMNS_MAX): LoadMap {
  const cells = rows.flatMap((row) => {
    const [instance, from, to] = [numberOf(row, 'instance'), numberOf(row, 'from_tokens'), numberOf(row, 'to_tokens')];
    if (instance === null || from === null || to === null || to <= from) return [];
    return [{ instance, from, to, tokens: numberOf(row, 'tokens') ?? 0, requests: numberOf(row, 'requests') ?? 0 }];
  });
  const unit = Math.min(...cells.map(({ from, to }) => to - from));
  const end = Math.max(0, ...cells.map(({ to }) => to));
  const width = cells.length === 0 ? 500 : unit * Math.ceil(end / unit / most);
  const starts = Array.from({ length: Math.ceil(end / width) }, (_, index) => index * width);
  const ids = [...new Set([...instances, ...cells.map(({ instance }) => instance)])].sort((a, b) => a - b);
  const lines = ids.map((instance) => {
    const line = { instance, tokens: starts.map(() => 0), requests: starts.map(() => 0), total: 0 };
    for (const cell of cells.filter((one) => one.instance === instance)) {
      const index = Math.floor(cell.from / width);
      line.tokens[index] = (line.tokens[index] ?? 0) + cell.tokens;
      line.requests[index] = (line.requests[index] ?? 0) + cell.requests;
      line.total += cell.tokens;
    }
    return line;
  });
  const totals = starts.map((_, index) => lines.reduce((sum, line) => sum + (line.tokens[index] ?? 0), 0));
  return { width, starts, instances: lines, totals };
}
