// Scenario: curves of several scopes, a capacity below, between, at and beyond what was measured.
// Guarantees: between two measured capacities the lower holds, `all` comes first, and the slider reaches both its ends.
import { expect, test } from 'vitest';
import { at, blocksOf, capacityFor, curvesOf, stopOf, STOPS } from '../../src/miss_ratio';

const row = (capacity_blocks: number | null, hit_rate: number, scope = 'all', tier: string | null = null) => ({
  scope,
  tier,
  capacity_blocks,
  capacity_tokens: capacity_blocks === null ? null : capacity_blocks * 16,
  hit_rate,
  hit_rate_error: 0.01,
  prompts: 9,
  window_seconds: 60,
  blocks_seen: 44,
});

const CURVES = curvesOf([row(8, 0.5, 'tier', 'Low'), row(64, 0.6), row(8, 0.2), row(null, 0.9), row(16, 0.4)]);

test('one curve per scope, `all` first, points by capacity', () => {
  expect(CURVES.map(({ scope }) => scope)).toEqual(['all', 'tier Low']);
  expect(CURVES[0]).toMatchObject({ most: 0.9, prompts: 9, windowSeconds: 60, blocksSeen: 44 });
  expect(CURVES[0]?.points.map(({ blocks, tokens }) => [blocks, tokens])).toEqual([
    [8, 128],
    [16, 256],
    [64, 1024],
  ]);
});

test('between two measured capacities the lower holds', () => {
  const rates = [4, 8, 15, 16, 63, 64, 9999].map((blocks) => at(CURVES[0]!, blocks)?.hitRate ?? null);
  expect(rates).toEqual([null, 0.2, 0.2, 0.4, 0.4, 0.6, 0.6]);
});

test('the least capacity for a rate', () => {
  expect([0.1, 0.4, 0.41, 0.99].map((rate) => capacityFor(CURVES[0]!, rate))).toEqual([8, 16, 64, null]);
});

test('the slider reaches both ends, and its stops lead back', () => {
  expect([blocksOf(0, 5000), blocksOf(STOPS, 5000)]).toEqual([1, 5000]);
  for (let stop = 100; stop <= STOPS; stop++) expect(stopOf(blocksOf(stop, 5000), 5000)).toBe(stop);
  expect(stopOf(1, 1)).toBe(0);
});
