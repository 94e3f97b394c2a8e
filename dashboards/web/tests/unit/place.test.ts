// Scenario: addresses of every view, with ranges, filters and picks; addresses that say nonsense.
// Guarantees: a place survives its address, nonsense is the default, another view keeps range and filters and drops
// picks, and no filter breaks out of its statement.
import { expect, test } from 'vitest';
import {
  addressOf,
  HOME,
  inGroup,
  inRange,
  inView,
  paceMs,
  placeOf,
  RANGES,
  stepSeconds,
  VIEWS,
  type Place,
} from '../../src/place';

const UNTIL = Date.parse('2026-03-04T05:06:07.123Z');

test('a place survives its address', () => {
  const places: Place[] = [
    HOME,
    { view: 'cache', seconds: 300, until: null, tier: 'Low', loss: 'present.evicted' },
    { view: 'requests', seconds: 77, until: UNTIL, tenant: 'a&b=c #?', request: 'req-1' },
    { view: 'sql', seconds: 900, until: null, query: "SELECT '100 %'\nFROM x" },
  ];
  for (const place of places) expect(placeOf(addressOf(place))).toEqual(place);
});

test('every view has an address', () => {
  for (const { id } of VIEWS) expect(placeOf(`#${id}`).view).toBe(id);
});

test('nonsense is the default', () => {
  for (const address of [
    '',
    '#',
    '#nowhere',
    '#fleet?range=yesterday',
    '#fleet?range=-5s&until=soon',
    '#fleet?tier=',
  ]) {
    expect(placeOf(address)).toEqual(HOME);
  }
});

test('another view keeps range and filters, and drops picks', () => {
  const place: Place = { view: 'cache', seconds: 300, until: UNTIL, tier: 'Low', loss: 'present.evicted', split: 'x' };
  expect(inView(place, 'requests')).toEqual({ view: 'requests', seconds: 300, until: UNTIL, tier: 'Low' });
});

test('statements: a range that moves, a range that stands, and filters as literals', () => {
  expect(inRange(HOME, 'at')).toBe(`"at" > now() - INTERVAL '900 seconds'`);
  expect(inRange({ ...HOME, seconds: 60, until: UNTIL }, 'as_of')).toBe(
    `"as_of" > TIMESTAMP '2026-03-04T05:05:07.123Z' AND "as_of" <= TIMESTAMP '2026-03-04T05:06:07.123Z'`,
  );
  expect(inGroup({ ...HOME, tenant: "o'neil", tier: 'High' })).toBe(` AND tier = 'High' AND tenant = 'o''neil'`);
});

test('a range has at most 90 steps', () => {
  for (const { seconds } of RANGES) {
    const steps = seconds / stepSeconds({ ...HOME, seconds });
    expect(steps).toBeGreaterThan(14);
    expect(steps).toBeLessThanOrEqual(90);
  }
});

test('a view is asked again when its answer can look different: seldom for long ranges, never for past ones', () => {
  expect(paceMs({ ...HOME, seconds: 60 }, 2000)).toBe(2000);
  expect(paceMs({ ...HOME, seconds: 86_400 }, 2000)).toBe(600_000);
  expect(paceMs({ ...HOME, until: UNTIL }, 2000)).toBe(Infinity);
});
