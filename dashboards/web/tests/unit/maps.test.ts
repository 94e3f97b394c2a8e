// Scenario: load of several instances over atoms, more atoms than columns; bucket plans of two models; instances that start, end and come back;
// answers of SQL with and without what a plot needs.
// Guarantees: no token is lost or counted twice, a state lasts until the next, and a plot's lines keep their places.
import { expect, test } from 'vitest';
import { cutsOf, perInstance, plansOf } from '../../src/buckets';
import { cacheLinesOf, levelsOf } from '../../src/cache_map';
import { hitRate } from '../../src/funnel';
import { COLUMNS_MAX, loadMapOf } from '../../src/load_map';
import { drawingOf, LINES_MAX } from '../../src/plotting';
import { countOf, lanesOf } from '../../src/scaling';
import type { Column } from '../../src/sql';

const load = (instance: number, atom: number, tokens: number) => ({
  instance,
  from_tokens: atom * 500,
  to_tokens: (atom + 1) * 500,
  tokens,
  requests: 1,
});

test('load by instance and range, idle instances too', () => {
  const map = loadMapOf([load(1, 0, 10), load(1, 2, 30), load(0, 2, 5)], [0, 1, 2]);
  expect(map.starts).toEqual([0, 500, 1000]);
  expect(map.instances.map(({ instance, tokens, total }) => [instance, tokens, total])).toEqual([
    [0, [0, 0, 5], 5],
    [1, [10, 0, 30], 40],
    [2, [0, 0, 0], 0],
  ]);
  expect(map.totals).toEqual([10, 0, 35]);
});

test('more atoms than columns are drawn wider, and nothing is lost', () => {
  const rows = Array.from({ length: 100 }, (_, atom) => load(0, atom, atom));
  const map = loadMapOf(rows, []);
  expect(map.starts.length).toBeLessThanOrEqual(COLUMNS_MAX);
  expect(map.width % 500).toBe(0);
  expect(map.totals.reduce((sum, tokens) => sum + tokens, 0)).toBe(4950);
  expect(loadMapOf([], []).starts).toEqual([]);
});

test('caches: a region is the sum of its instances and of what was never placed', () => {
  const row = (region: string, instance: number | null, layer: string, tokens: number, more: object = {}) => ({
    region,
    instance,
    layer,
    tokens,
    level: null,
    reason: null,
    requests: layer === 'prompt' ? 1 : null,
    ...more,
  });
  const lines = cacheLinesOf([
    row('eu', 1, 'prompt', 100),
    row('eu', 1, 'present', 40, { level: 'L2' }),
    row('eu', 0, 'prompt', 50),
    row('eu', 0, 'present', 30, { level: 'L1' }),
    row('eu', 0, 'present', 20, { reason: 'evicted' }),
    row('eu', null, 'prompt', 10),
    row('ap', 2, 'prompt', 5),
  ]);
  expect(lines.map(({ region, instance, funnel }) => [region, instance, funnel.prompt, funnel.requests])).toEqual([
    ['ap', null, 5, 1],
    ['ap', 2, 5, 1],
    ['eu', null, 160, 3],
    ['eu', 0, 50, 1],
    ['eu', 1, 100, 1],
  ]);
  expect(hitRate(lines[3]!.funnel)).toBe(0.6);
  expect(levelsOf(lines)).toEqual(['L1', 'L2']);
  expect(lines[2]?.levels.get('L2')).toBe(40);
});

test('plans: one per model, buckets in order, cuts over all models', () => {
  const row = (model: string, bucket: number, from_tokens: number, to_tokens: number | null, instances: number[]) => ({
    model,
    bucket,
    from_tokens,
    to_tokens,
    instances,
    at: 5,
    state: 'cut',
    load: 1.5,
  });
  const plans = plansOf([row('b', 1, 1500, null, [1, 2, 3]), row('b', 0, 0, 1500, [0]), row('a', 0, 0, null, [4])]);
  expect(plans.map(({ model, buckets }) => [model, buckets.map(({ instances }) => instances)])).toEqual([
    ['a', [[4]]],
    ['b', [[0], [1, 2, 3]]],
  ]);
  expect(cutsOf(plans)).toEqual([1500]);
  expect(plans[1]?.buckets.map(perInstance)).toEqual([1.5, 0.5]);
  expect(perInstance({ bucket: 0, from: 0, to: null, instances: [], load: 1 })).toBeNull();
});

const state = (at: number, instance: number, name: string) => ({
  at,
  instance,
  name: `w${instance}`,
  state: name,
  model: 'm',
});

test('a state lasts until the next one, and is cut to the range', () => {
  const rows = [
    state(50, 0, 'ready'),
    state(0, 0, 'starting'),
    state(40, 1, 'ready'),
    state(70, 1, 'dead'),
    state(999, 1, 'ready'),
  ];
  const lanes = lanesOf(rows, 20, 100);
  expect(lanes.map(({ name, stretches }) => [name, stretches.map((one) => [one.state, one.from, one.to])])).toEqual([
    ['w0', [['starting', 20, 50], ['ready', 50, 100]]], // prettier-ignore
    ['w1', [['ready', 40, 70], ['dead', 70, 100]]], // prettier-ignore
  ]);
  expect(countOf(lanes, 'ready', 20)).toEqual([
    [20, 0],
    [40, 1],
    [50, 2],
    [70, 1],
    [100, 0],
  ]);
});

const column = (name: string, type: Column['type']): Column => ({ name, type, unit: '', comment: '' });

test('a plot has a line per column of numbers, or per text', () => {
  const columns = [column('at', 'time'), column('tier', 'text'), column('n', 'number')];
  const rows = [
    { at: 2000, tier: 'Low', n: 5 },
    { at: 1000, tier: 'High', n: 1 },
    { at: 2000, tier: 'High', n: null },
  ];
  expect(drawingOf({ columns, rows })).toMatchObject({
    axis: 'time',
    x: [1, 2],
    lines: [
      { label: 'Low', values: [null, 5] },
      { label: 'High', values: [1, null] },
    ],
  });
});

test('a plot over numbers, what cannot be drawn, and the bound of lines', () => {
  const numbers = [column('blocks', 'number'), column('rate', 'number')];
  expect(drawingOf({ columns: numbers, rows: [{ blocks: 8, rate: 1 }, { blocks: 0, rate: 2 }] })?.x).toEqual([8]); // prettier-ignore
  expect(drawingOf({ columns: [column('n', 'number')], rows: [{ n: 1 }] })).toBeNull();
  expect(drawingOf({ columns: [column('t', 'text')], rows: [] })).toBeNull();
  const many = Array.from({ length: 12 }, (_, index) => ({ at: 1, tier: `t${index}`, n: 1 }));
  const drawing = drawingOf({
    columns: [column('at', 'time'), column('tier', 'text'), column('n', 'number')],
    rows: many,
  });
  expect([drawing?.lines.length, drawing?.leftOut]).toEqual([LINES_MAX, 4]);
});
