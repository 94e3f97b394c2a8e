// Scenario: a request that waits and is answered, one that moves to another instance, one still running, one refused;
// decisions with candidates and a term that this page does not know.
// Guarantees: phases follow each other without holes, ends are told, every term of the table is shown, the chosen one is
// marked and the cheapest comes first.
import { expect, test } from 'vitest';
import { decisionsOf, lifeOf, timeOfId } from '../../src/life';

const T0 = 1_772_600_767_000;
const event = (seq: number, after: number, name: string, more: object = {}) => ({
  request_id: 'req-1',
  seq,
  at: T0 + after,
  event: name,
  model: 'm',
  tier: 'High',
  tenant: 't',
  instance: null,
  prompt_tokens: 100,
  output_tokens: 0,
  cached_tokens: null,
  gap_us: null,
  total_us: null,
  error: null,
  ...more,
});

const ANSWERED = [
  event(1, 0, 'arrived'),
  event(2, 4, 'queued'),
  event(3, 30, 'dispatched', { instance: 1 }),
  event(4, 80, 'first_token', { instance: 1, output_tokens: 1, gap_us: 80_000 }),
  event(5, 100, 'grew', { instance: 1, output_tokens: 2 }),
  event(6, 120, 'finished', { instance: 1, output_tokens: 2, cached_tokens: 64, total_us: 120_000 }),
];

test('phases follow each other, whatever the order of the rows', () => {
  const life = lifeOf(ANSWERED.toReversed());
  expect(life?.phases.map(({ id, from, to }) => [id, from, to])).toEqual([
    ['decide', 0, 4],
    ['queue', 4, 30],
    ['first', 30, 80],
    ['generate', 80, 120],
  ]);
  expect(life).toMatchObject({ ttft: 80, total: 120, cachedTokens: 64, end: 'finished', tokens: [80, 100] });
});

test('a request that moved has a phase for each instance', () => {
  const moved = [
    ...ANSWERED.slice(0, 4),
    event(5, 90, 'dispatched', { instance: 2 }),
    event(6, 99, 'grew', { instance: 2 }),
  ];
  expect(lifeOf(moved)?.phases.map(({ id, instance }) => [id, instance])).toEqual([
    ['decide', null],
    ['queue', null],
    ['first', 1],
    ['generate', 1],
    ['first', 2],
    ['generate', 2],
  ]);
});

test('what still runs has no end, and what was refused says why', () => {
  expect(lifeOf(ANSWERED.slice(0, 4))).toMatchObject({ end: null, total: null });
  const refused = [event(1, 0, 'arrived'), event(2, 3, 'rejected', { error: 'too long', total_us: 3000 })];
  expect(lifeOf(refused)).toMatchObject({ end: 'rejected', error: 'too long', ttft: null });
  expect(lifeOf([])).toBeNull();
});

test('the cheapest is the one with the least that is compared, where the table says what that is', () => {
  const candidate = (instance: number, total_seconds: number, compared_seconds?: number) => ({
    instance,
    total_seconds,
    ...(compared_seconds === undefined ? {} : { compared_seconds }),
  });
  const order = (candidates: object[]) =>
    decisionsOf([{ at: T0, candidates }])[0]?.candidates.map(({ instance }) => instance);
  expect(order([candidate(1, 0.5), candidate(2, 0.4)])).toEqual([2, 1]);
  expect(order([candidate(1, 0.5, 0.6), candidate(2, 0.4, 0.9)])).toEqual([1, 2]);
});

test('every term is shown, the chosen one marked, the cheapest first', () => {
  const candidate = (instance: number, total: number) => ({
    instance,
    hit_tokens: 32,
    queue_seconds: 0,
    fetch_seconds: total,
    fetch_error_seconds: 0.01,
    error_seconds: 0.01,
    total_seconds: total,
    compared_seconds: total,
  });
  const [decision] = decisionsOf([
    {
      at: T0,
      decision_id: 'dec-1',
      outcome: 'admit',
      instance: 1,
      predicted_seconds: 0.5,
      view_as_of: T0 - 40,
      candidates: [candidate(1, 0.5), candidate(0, 0.2)],
    },
  ]);
  expect(decision).toMatchObject({ predictedTtft: 500, viewAge: 40, outcome: 'admit' });
  expect(decision?.candidates.map(({ instance, chosen }) => [instance, chosen])).toEqual([
    [0, false],
    [1, true],
  ]);
  expect(decision?.candidates[0]?.terms).toEqual([
    { name: 'queue', seconds: 0 },
    { name: 'fetch', seconds: 0.2 },
  ]);
  expect(decision?.candidates[0]).toMatchObject({ total: 0.2, error: 0.01, compared: 0.2 });
});

test('an id says when it was made, another text does not', () => {
  expect(timeOfId('req-019b8d2f6c007000800000000000000a')).toBe(0x019b8d2f6c00);
  expect(timeOfId('dec-019b8d2f6c007000800000000000000a')).toBe(0x019b8d2f6c00);
  for (const id of [
    'req-1',
    'req-ffffffffffff7000800000000000000a',
    'req-019b8d2f6c004000800000000000000a',
    "req-'none",
    '',
  ])
    expect(timeOfId(id)).toBeNull();
});
