// Where the reader is: view, time range, filters and what is picked. All of it is in the address behind `#`, so that a
// link or the back button leads to the same picture. Pure.
//
// Invariant: `placeOf(addressOf(place))` is `place`; what an address says wrongly or not at all is the default.
import { literal } from './sql';

export const VIEWS = [
  { id: 'fleet', title: 'Fleet' },
  { id: 'cache', title: 'Hit rate' },
  { id: 'load', title: 'Load map' },
  { id: 'capacity', title: 'Capacity' },
  { id: 'scaling', title: 'Scaling' },
  { id: 'requests', title: 'Requests' },
  { id: 'shadow', title: 'Shadow' },
  { id: 'sql', title: 'SQL' },
] as const;

export type ViewId = (typeof VIEWS)[number]['id'];

export const RANGES = [
  { id: '1m', seconds: 60 },
  { id: '5m', seconds: 300 },
  { id: '15m', seconds: 900 },
  { id: '1h', seconds: 3600 },
  { id: '6h', seconds: 21_600 },
  { id: '24h', seconds: 86_400 },
] as const;

/** Filters that name a group of requests; each is a column of the tables of requests. */
export const FILTERS = ['model', 'tier', 'tenant'] as const;

/** What is picked inside a view; gone when another view is opened. */
const PICKS = ['loss', 'split', 'request', 'outcome', 'order', 'scope', 'blocks', 'query'] as const;

export type Filter = (typeof FILTERS)[number];
export type Pick = (typeof PICKS)[number];

export type Place = {
  view: ViewId;
  /** Length of the time range. */
  seconds: number;
  /** End of the time range, milliseconds since the epoch; `null`: now, moving on. */
  until: number | null;
} & { [name in Filter | Pick]?: string | undefined };

export const HOME: Place = { view: 'fleet', seconds: 900, until: null };

export function placeOf(address: string): Place {
  const [, name = '', query = ''] = /^#?([^?]*)\??(.*)$/.exec(address) ?? [];
  const fields = new URLSearchParams(query);
  const place: Place = { ...HOME, view: VIEWS.find(({ id }) => id === name)?.id ?? HOME.view };
  place.seconds = secondsOf(fields.get('range')) ?? HOME.seconds;
  const until = Date.parse(fields.get('until') ?? '');
  if (!Number.isNaN(until)) place.until = until;
  for (const field of [...FILTERS, ...PICKS]) {
    const value = fields.get(field);
    if (value !== null && value !== '') place[field] = value;
  }
  return place;
}

export function addressOf(place: Place): string {
  const fields = new URLSearchParams();
  if (place.seconds !== HOME.seconds) fields.set('range', rangeName(place.seconds));
  if (place.until !== null) fields.set('until', new Date(place.until).toISOString());
  for (const field of [...FILTERS, ...PICKS]) {
    const value = place[field];
    if (value !== undefined && value !== '') fields.set(field, value);
  }
  const query = fields.toString();
  return `#${place.view}${query === '' ? '' : `?${query}`}`;
}

/** The same range and filters in another view. */
export function inView(place: Place, view: ViewId): Place {
  const { seconds, until } = place;
  const kept: Place = { view, seconds, until };
  for (const filter of FILTERS) {
    const value = place[filter];
    if (value !== undefined) kept[filter] = value;
  }
  return kept;
}

export function rangeName(seconds: number): string {
  return RANGES.find((range) => range.seconds === seconds)?.id ?? `${seconds}s`;
}

function secondsOf(name: string | null): number | null {
  const named = RANGES.find(({ id }) => id === name)?.seconds;
  if (named !== undefined) return named;
  const seconds = /^(\d{1,6})s$/.exec(name ?? '')?.[1];
  return seconds === undefined || Number(seconds) < 1 ? null : Number(seconds);
}

/** The condition that a column of times lies in the range. */
export function inRange(place: Place, column: string): string {
  if (place.until === null) return `"${column}" > now() - INTERVAL '${place.seconds} seconds'`;
  const from = new Date(place.until - place.seconds * 1000).toISOString();
  return `"${column}" > TIMESTAMP '${from}' AND "${column}" <= TIMESTAMP '${new Date(place.until).toISOString()}'`;
}

/** The condition that a row is of the group that the filters name; `table` is put before the columns. */
export function inGroup(place: Place, table = ''): string {
  return FILTERS.flatMap((filter) => {
    const value = place[filter];
    return value === undefined ? [] : [` AND ${table}${filter} = ${literal(value)}`];
  }).join('');
}

/** The time after which an answer can look different: a step of the range, at least `least`; never if the range is past. */
export function paceMs(place: Place, least: number): number {
  return place.until === null ? Math.max(least, stepSeconds(place) * 500) : Infinity;
}

const STEPS = [1, 2, 4, 10, 20, 30, 60, 120, 300, 600, 1200];

/** Seconds of one bar or point, so that the range has at most about 90. */
export function stepSeconds(place: Place): number {
  return STEPS.find((step) => place.seconds / step <= 90) ?? 1200;
}
