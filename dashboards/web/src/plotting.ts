// An answer of SQL as lines: the first column of times is the x axis, each column of numbers a line, and the first
// column of text parts the rows into one line for each of its values. Pure.
//
// Bound: LINES_MAX lines; what is beyond is left out and counted.
import type { Known } from './fleet';
import { numberOf, textOf, type Result } from './sql';

export const LINES_MAX = 8;

export interface Drawing {
  axis: 'time' | 'log';
  /** Seconds since the epoch, or the first column of numbers. */
  x: number[];
  xName: string;
  lines: { label: string; values: Known[] }[];
  leftOut: number;
}

/** `null` where there is nothing to draw: no column of times or numbers for the x axis, or no other column of numbers. */
export function drawingOf({ columns, rows }: Pick<Result, 'columns' | 'rows'>): Drawing | null {
  const time = columns.find(({ type }) => type === 'time');
  const numbers = columns.filter(({ type }) => type === 'number');
  const over = time ?? numbers[0];
  const measured = numbers.filter((column) => column !== over);
  if (over === undefined || measured.length === 0) return null;
  const part = columns.find(({ type }) => type === 'text');
  const scale = time === undefined ? 1 : 1000;
  const places = rows.flatMap((row) => numberOf(row, over.name) ?? []).filter((at) => time !== undefined || at > 0);
  const x = [...new Set(places)].sort((a, b) => a - b);
  const index = new Map(x.map((at, place) => [at, place]));
  const lines = new Map<string, Known[]>();
  let leftOut = 0;
  for (const row of rows) {
    const place = index.get(numberOf(row, over.name) ?? Number.NaN);
    if (place === undefined) continue;
    for (const { name } of measured) {
      const value = part === undefined ? '' : (textOf(row, part.name) ?? 'NULL');
      const label = part === undefined ? name : measured.length === 1 ? value : `${value} ${name}`;
      if (!lines.has(label) && lines.size === LINES_MAX) {
        leftOut++;
        continue;
      }
      const line = lines.get(label) ?? x.map(() => null);
      lines.set(label, line);
      line[place] = numberOf(row, name);
    }
  }
  const axis = time === undefined ? 'log' : 'time';
  const drawn = [...lines].map(([label, values]) => ({ label, values }));
  return { axis, x: x.map((at) => at / scale), xName: over.name, lines: drawn, leftOut };
}
