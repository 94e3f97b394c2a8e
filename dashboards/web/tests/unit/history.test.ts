// Scenario: points arriving in time, late, twice, after a hole, and from the server's records.
// Guarantees: times rise strictly, the window is five minutes, a hole breaks the line, and what the page saw wins over
// what it asked for.
import { expect, test } from 'vitest';
import { append, backfill, POINTS_MAX, unknownAt, WINDOW_SECONDS, type Point } from '../../src/history';

const point = (at: number, tokensPerSecond: number | null = at): Point => ({ ...unknownAt(at), tokensPerSecond });
const times = (points: readonly Point[]) => points.map(({ at }) => at);
const gather = (all: Point[]) => all.reduce<Point[]>((history, next) => append(history, next), []);

test('keeps five minutes', () => {
  const history = gather(Array.from({ length: 400 }, (_, second) => point(1000 + second)));
  expect(history[0]?.at).toBe(1399 - WINDOW_SECONDS);
  expect(history.at(-1)?.at).toBe(1399);
});

test('never keeps more than its bound, however dense the points', () => {
  const history = gather(Array.from({ length: POINTS_MAX + 50 }, (_, index) => point(1000 + index / 100)));
  expect(history).toHaveLength(POINTS_MAX);
});

test('a repeated or earlier time replaces what it overtakes', () => {
  expect(times(gather([point(10), point(11), point(12), point(11)]))).toEqual([10, 11]);
  expect(gather([point(10, 1), point(10, 2)])).toEqual([point(10, 2)]);
});

test('a hole is one unknown point', () => {
  const history = gather([point(10), point(15), point(25)]);
  expect(history).toEqual([point(10), point(15), unknownAt(20), point(25)]);
});

test('older points come first and never over what the page saw', () => {
  const seen = gather([point(20, 200), point(21, 210)]);
  expect(backfill(seen, [point(18, 1), point(19, 2), point(20, 3)])).toEqual([point(18, 1), point(19, 2), ...seen]);
  expect(backfill([], [point(18)])).toEqual([point(18)]);
  expect(times(backfill(seen, [point(2)]))).toEqual([2, 11, 20, 21]);
});
