// The scaling timeline: what state each instance was in, and how many were ready. Pure.
import { numberOf, textOf, type Row } from './sql';

export interface Stretch {
  state: string;
  /** Milliseconds since the epoch. */
  from: number;
  to: number;
  detail: string;
}

export interface Lane {
  instance: number;
  name: string;
  model: string;
  stretches: Stretch[];
}

/** Lanes from rows of `instances`, cut to [from, to]. A state lasts until the instance's next row. */
export function lanesOf(rows: readonly Row[], from: number, to: number): Lane[] {
  const lanes = new Map<number, Lane>();
  const sorted = [...rows].sort((a, b) => (numberOf(a, 'at') ?? 0) - (numberOf(b, 'at') ?? 0));
  for (const row of sorted) {
    const [at, instance] = [numberOf(row, 'at'), numberOf(row, 'instance')];
    if (at === null || instance === null || at > to) continue;
    const lane = lanes.get(instance) ?? { instance, name: '', model: '', stretches: [] };
    lanes.set(instance, lane);
    lane.name = textOf(row, 'name') ?? `#${instance}`;
    lane.model = textOf(row, 'model') ?? '';
    const last = lane.stretches.at(-1);
    if (last !== undefined) last.to = at;
    lane.stretches.push({
      state: textOf(row, 'state') ?? 'unknown',
      from: at,
      to,
      detail: textOf(row, 'detail') ?? '',
    });
  }
  for (const lane of lanes.values()) {
    lane.stretches = lane.stretches
      .filter((stretch) => stretch.to > from)
      .map((stretch) => ({ ...stretch, from: Math.max(from, stretch.from) }));
  }
  return [...lanes.values()].filter((lane) => lane.stretches.length > 0).sort((a, b) => a.instance - b.instance);
}

/** How many lanes were in `state`, as steps of `[time, number]`, the first at `from`. */
export function countOf(lanes: readonly Lane[], state: string, from: number): [number, number][] {
  const changes = new Map<number, number>([[from, 0]]);
  for (const { stretches } of lanes) {
    for (const stretch of stretches.filter((one) => one.state === state)) {
      changes.set(stretch.from, (changes.get(stretch.from) ?? 0) + 1);
      changes.set(stretch.to, (changes.get(stretch.to) ?? 0) - 1);
    }
  }
  let number = 0;
  return [...changes].sort(([a], [b]) => a - b).map(([at, change]) => [at, (number += change)]);
}
