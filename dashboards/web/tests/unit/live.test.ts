// Scenario: the life of the stream: opening, events, silence, loss, return, refusal, unreadable events, clocks that
// differ.
// Guarantees: the state in the heading is the true one, and the last good numbers stay until newer ones come.
import { expect, test } from 'vitest';
import {
  clockSkewMs,
  liveness,
  NOTHING_YET,
  reduce,
  retryDelayMs,
  STALE_MS,
  type Live,
  type LiveEvent,
} from '../../src/live';
import { unknownAt } from '../../src/history';

const T0 = Date.parse('2026-03-04T05:06:07Z');
const fleetAt = (ms: number, tokens = 5): LiveEvent => ({
  type: 'event',
  data: JSON.stringify({ as_of: new Date(ms).toISOString(), tokens_per_second: tokens }),
});
const after = (...events: LiveEvent[]): Live => events.reduce(reduce, NOTHING_YET);
const opened: LiveEvent = { type: 'opened', skewMs: 0 };
const lost: LiveEvent = { type: 'failed', problem: 'The server ended the stream.', status: 0, retryAtMs: T0 + 2000 };

test('connecting until the first event, with no age', () => {
  expect(liveness(NOTHING_YET, T0)).toEqual({ state: 'connecting', ageMs: null });
  expect(liveness(after(opened), T0)).toEqual({ state: 'connecting', ageMs: null });
});

test('live with an event, stale once it is too old', () => {
  const live = after(opened, fleetAt(T0));
  expect(liveness(live, T0 + 400)).toEqual({ state: 'live', ageMs: 400 });
  expect(liveness(live, T0 + STALE_MS).state).toBe('live');
  expect(liveness(live, T0 + STALE_MS + 1).state).toBe('stale');
});

test('events whose as_of stands still are stale, though they arrive', () => {
  const live = after(opened, fleetAt(T0), fleetAt(T0), fleetAt(T0));
  expect(liveness(live, T0 + STALE_MS + 1).state).toBe('stale');
  expect(live.history).toHaveLength(1);
});

test('reconnecting keeps the last numbers and their age, and says why', () => {
  const live = after(opened, fleetAt(T0, 7), lost);
  expect(liveness(live, T0 + 1500)).toEqual({ state: 'reconnecting', ageMs: 1500 });
  expect(live.fleet?.tokensPerSecond).toBe(7);
  expect(live).toMatchObject({ problem: 'The server ended the stream.', retryAtMs: T0 + 2000, keyNeeded: false });
});

test('coming back clears the problem', () => {
  const live = after(opened, fleetAt(T0), lost, opened, fleetAt(T0 + 3000));
  expect(live).toMatchObject({ problem: null, retryAtMs: null });
  expect(liveness(live, T0 + 3100).state).toBe('live');
});

test('401 asks for a key until the stream opens', () => {
  const refused: LiveEvent = { type: 'failed', problem: 'no key', status: 401, retryAtMs: T0 };
  expect(after(refused).keyNeeded).toBe(true);
  expect(after(refused, opened).keyNeeded).toBe(false);
});

test('an unreadable event is counted and named, and the numbers stay', () => {
  const live = after(opened, fleetAt(T0, 7), { type: 'event', data: '{"as_of": 3}' });
  expect(live).toMatchObject({ unreadable: 1, fleet: { tokensPerSecond: 7 } });
  expect(live.problem).toMatch(/as_of is 3/);
  expect(reduce(live, fleetAt(T0 + 1000)).problem).toBeNull();
});

test('a clock that is ahead does not make numbers old', () => {
  const live = after({ type: 'opened', skewMs: 60_000 }, fleetAt(T0));
  expect(liveness(live, T0 + 60_300)).toEqual({ state: 'live', ageMs: 300 });
  expect(liveness(live, T0 + 59_000).ageMs).toBe(0);
});

test('skew is read from the Date header, beyond its coarseness', () => {
  const header = new Date(T0).toUTCString();
  expect(clockSkewMs(header, T0 + 900)).toBe(0);
  expect(clockSkewMs(header, T0 + 60_500)).toBe(60_000);
  expect(clockSkewMs(header, T0 - 59_500)).toBe(-60_000);
  expect(clockSkewMs(null, T0)).toBe(0);
  expect(clockSkewMs('yesterday', T0)).toBe(0);
});

test('pauses between attempts grow to a bound', () => {
  expect([0, 1, 2, 3, 4, 99].map(retryDelayMs)).toEqual([1000, 2000, 4000, 8000, 10_000, 10_000]);
});

test('the records of before go before what was seen', () => {
  const live = after(opened, fleetAt(T0), { type: 'backfilled', points: [unknownAt(T0 / 1000 - 1)] });
  expect(live.history.map(({ at }) => at)).toEqual([T0 / 1000 - 1, T0 / 1000]);
});
