// Scenario: funnels with losses and gains, over time with a steady rate, a fall, a cold start before a fall, and noise.
// Guarantees: layers are the prompt less the losses, bars join, a fall is found where it is and only where one is, and
// the causes' points add up to the fall.
import { expect, test } from 'vitest';
import {
  broken,
  causes,
  fallOf,
  funnelOf,
  hitRate,
  LAYERS,
  parted,
  reached,
  sum,
  waterfall,
  windowsOf,
  type Window,
} from '../../src/funnel';

const row = (layer: string, reason: string | null, tokens: number, since = 0) => ({
  since,
  layer,
  reason,
  tokens,
  seconds: reason === null ? null : tokens / 1000,
  requests: 2,
});

const FUNNEL = funnelOf([
  row('prompt', null, 1000),
  row('potential', 'never_seen', 200),
  row('present', 'evicted', 300),
  row('visible', 'phantom', -50),
  row('delivered', 'stale_view', 100),
  row('delivered', 'unseen_hit', -10),
]);

const window = (at: number, prompt: number, evicted: number, unseen = 0): Window => ({
  at,
  requests: 1,
  prompt,
  losses: new Map([
    ['present.evicted', { tokens: evicted, seconds: null }],
    ['potential.never_seen', { tokens: unseen, seconds: null }],
  ]),
});

test('layers are the prompt less the losses up to them', () => {
  expect(LAYERS.map(({ id }) => reached(FUNNEL, id))).toEqual([1000, 800, 500, 550, 550, 550, 460]);
  expect(hitRate(FUNNEL)).toBeCloseTo(0.46);
});

test('the waterfall joins: each loss starts where the layer before ends', () => {
  const steps = waterfall(FUNNEL);
  let at = 1;
  for (const step of steps) {
    if (step.kind === 'layer') expect(step.to).toBeCloseTo(at);
    else {
      expect(step.tokens > 0 ? step.to : step.from).toBeCloseTo(at);
      at = step.tokens > 0 ? step.from : step.to;
    }
  }
  expect(steps.filter(({ kind }) => kind === 'layer')).toHaveLength(LAYERS.length);
  expect(steps.find(({ id }) => id === 'present.evicted')).toMatchObject({ tokens: 300, share: 0.3, seconds: 0.3 });
});

test('rows of one step of time are one window, in order of time', () => {
  const windows = windowsOf([
    row('present', 'evicted', 5, 2000),
    row('prompt', null, 10, 2000),
    row('prompt', null, 20, 1000),
    { ...row('prompt', null, 30), since: null },
  ]);
  expect(windows.map(({ at, prompt, requests }) => [at, prompt, requests])).toEqual([
    [1000, 20, 2],
    [2000, 10, 2],
  ]);
  expect(hitRate(windows[1]!)).toBe(0.5);
});

test('a window without prompts has no hit rate', () => {
  expect(hitRate(sum([]))).toBeNull();
  expect(hitRate(window(1, 0, 0))).toBeNull();
});

test('a hole breaks the line, uneven steps do not', () => {
  const at = (times: number[]) => broken(times.map((time) => window(time, 10, 1))).map((one) => one.at);
  expect(at([10, 20, 30, 70, 80])).toEqual([10, 20, 30, 50, 70, 80]);
  expect(at([10, 20, 40, 70])).toEqual([10, 20, 40, 70]);
  expect([at([]), at([5])]).toEqual([[], [5]]);
});

test('a fall is found where it is', () => {
  const windows = Array.from({ length: 20 }, (_, at) => window(at, 100 + (at % 3) * 10, at < 13 ? 10 : 90));
  expect(fallOf(windows)).toBe(13);
});

test('a cold start before the fall does not hide it', () => {
  const windows = Array.from({ length: 20 }, (_, at) => window(at, 100, at < 3 ? 100 : at < 12 ? 5 : 80));
  expect(fallOf(windows)).toBe(12);
});

test('no fall in a steady rate, a rise, a single window or none', () => {
  expect(fallOf(Array.from({ length: 20 }, (_, at) => window(at, 100, 30 + (at % 2))))).toBeNull();
  expect(fallOf(Array.from({ length: 20 }, (_, at) => window(at, 100, 90 - at * 4)))).toBeNull();
  expect(fallOf([window(1, 100, 50)])).toBeNull();
  expect(fallOf([])).toBeNull();
});

test("the causes' points add up to the fall, the largest first", () => {
  const windows = Array.from({ length: 10 }, (_, at) => (at < 5 ? window(at, 100, 10, 20) : window(at, 200, 120, 50)));
  const { before, after } = parted(windows, 5);
  const all = causes(after, before);
  expect(all[0]?.id).toBe('present.evicted');
  expect(all[0]?.points).toBeCloseTo(0.5);
  const total = all.reduce((points, cause) => points + cause.points, 0);
  expect(total).toBeCloseTo((hitRate(before) ?? 0) - (hitRate(after) ?? 0));
});
