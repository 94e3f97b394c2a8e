// How far prompt tokens got by region and by instance, and at which KV level they were held. Pure.
//
// Invariant: a region's line is the sum of its instances' and of the requests that were never placed.
import { funnelOf, type Funnel } from './funnel';
import { numberOf, textOf, type Row } from './sql';

export interface CacheLine {
  region: string;
  /** `null`: the whole region. */
  instance: number | null;
  funnel: Funnel;
  /** Tokens held, by KV level. */
  levels: ReadonlyMap<string, number>;
}

/** Lines from rows of `region, instance, layer, level, reason, tokens, requests`: a region, then its instances. */
export function cacheLinesOf(rows: readonly Row[]): CacheLine[] {
  const regions = groupBy(rows, (row) => textOf(row, 'region') ?? '');
  return [...regions]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([region, all]) => {
      const instances = groupBy(all, (row) => numberOf(row, 'instance'));
      const placed = [...instances].flatMap(([id, own]) => (id === null ? [] : [{ id, own }]));
      placed.sort((a, b) => a.id - b.id);
      return [lineOf(region, null, all), ...placed.map(({ id, own }) => lineOf(region, id, own))];
    });
}

function groupBy<Key>(rows: readonly Row[], keyOf: (row: Row) => Key): Map<Key, Row[]> {
  const groups = new Map<Key, Row[]>();
  for (const row of rows) {
    const group = groups.get(keyOf(row)) ?? [];
    groups.set(keyOf(row), group);
    group.push(row);
  }
  return groups;
}

function lineOf(region: string, instance: number | null, rows: readonly Row[]): CacheLine {
  const levels = new Map<string, number>();
  for (const row of rows) {
    const level = textOf(row, 'level');
    if (level !== null) levels.set(level, (levels.get(level) ?? 0) + (numberOf(row, 'tokens') ?? 0));
  }
  return { region, instance, funnel: funnelOf(rows), levels };
}

/** Levels that any line has, the nearest first. */
export function levelsOf(lines: readonly CacheLine[]): string[] {
  return [...new Set(lines.flatMap(({ levels }) => [...levels.keys()]))].sort();
}
