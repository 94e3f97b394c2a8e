// Scenario: atoms with holes, out of order, none, and far more than there is room for.
// Guarantees: a continuous axis from 0 with equal bars, no load lost, and never more bars than asked for.
import { expect, test } from 'vitest';
import { barsOf } from '../../src/atoms';

const atom = (index: number, tokens: number) => ({
  fromTokens: index * 500,
  toTokens: (index + 1) * 500,
  tokens,
  requests: 1,
});

test('no atoms, no bars', () => expect(barsOf([])).toEqual([]));

test('holes become empty bars', () => {
  expect(barsOf([atom(2, 30), atom(0, 10)])).toEqual([atom(0, 10), { ...atom(1, 0), requests: 0 }, atom(2, 30)]);
});

test('a long axis is drawn with wider bars and loses nothing', () => {
  for (const atoms of [47, 48, 49, 97, 1000]) {
    const bars = barsOf(
      Array.from({ length: atoms }, (_, index) => atom(index, index)),
      48,
    );
    expect(bars.length).toBeLessThanOrEqual(48);
    expect(bars.reduce((sum, bar) => sum + bar.tokens, 0)).toBe((atoms * (atoms - 1)) / 2);
    expect(bars.reduce((sum, bar) => sum + bar.requests, 0)).toBe(atoms);
    expect(bars[0]?.fromTokens).toBe(0);
    expect(bars.at(-1)?.toTokens).toBeGreaterThanOrEqual(atoms * 500);
  }
});
