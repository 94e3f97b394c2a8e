// The miss-ratio curve (SPEC X4): hit rate as a function of capacity, and what another capacity would buy. Pure.
//
// Invariant: the curve is a staircase as the table has it: between two measured capacities the lower one holds.
import { numberOf, textOf, type Row } from './sql';
import type { Known } from './fleet';

export interface CurvePoint {
  blocks: number;
  tokens: number;
  hitRate: number;
  /** One standard error of `hitRate`. */
  error: number;
}

export interface Curve {
  /** Whose prompts: `all`, or `model NAME`, `tier NAME`, `tenant NAME`. */
  scope: string;
  prompts: number;
  windowSeconds: number;
  blocksSeen: number;
  points: CurvePoint[];
  /** Without a bound. */
  most: Known;
}

export function curvesOf(rows: readonly Row[]): Curve[] {
  const curves = new Map<string, Curve>();
  for (const row of rows) {
    const scope = textOf(row, 'scope') ?? '';
    const name = scope === 'all' ? 'all' : `${scope} ${textOf(row, scope) ?? ''}`;
    const curve = curves.get(name) ?? {
      scope: name,
      prompts: numberOf(row, 'prompts') ?? 0,
      windowSeconds: numberOf(row, 'window_seconds') ?? 0,
      blocksSeen: numberOf(row, 'blocks_seen') ?? 0,
      points: [],
      most: null,
    };
    curves.set(name, curve);
    const hitRate = numberOf(row, 'hit_rate');
    const blocks = numberOf(row, 'capacity_blocks');
    if (hitRate === null) continue;
    if (blocks === null) curve.most = hitRate;
    else {
      const [tokens, error] = [numberOf(row, 'capacity_tokens') ?? 0, numberOf(row, 'hit_rate_error') ?? 0];
      curve.points.push({ blocks, tokens, hitRate, error });
    }
  }
  for (const curve of curves.values()) curve.points.sort((a, b) => a.blocks - b.blocks);
  return [...curves.values()].sort((a, b) => Number(b.scope === 'all') - Number(a.scope === 'all') || order(a, b));
}

const order = (a: Curve, b: Curve) => (a.scope < b.scope ? -1 : 1);

/** The curve at a capacity: `null` below the least measured one. */
export function at(curve: Curve, blocks: number): CurvePoint | null {
  return curve.points.findLast((point) => point.blocks <= blocks) ?? null;
}

/** Stops of the slider: even steps on the logarithm, from one block to twice the largest capacity worth asking for. */
export const STOPS = 200;

export function blocksOf(stop: number, most: number): number {
  return Math.max(1, Math.round(most ** (stop / STOPS)));
}

export function stopOf(blocks: number, most: number): number {
  return most <= 1 ? 0 : Math.round((Math.log(Math.max(1, blocks)) / Math.log(most)) * STOPS);
}

/** The least measured capacity that reaches a hit rate, or `null`. */
export function capacityFor(curve: Curve, hitRate: number): number | null {
  return curve.points.find((point) => point.hitRate >= hitRate)?.blocks ?? null;
}
