// Numbers and times as an operator reads them. Pure; units are named in the text or returned beside it.
//
// Invariant: unknown (`null`) is UNKNOWN, an en dash, and never 0.
import type { Known } from './fleet';

export const UNKNOWN = '–';

/** A number and its unit, kept apart so that the unit can be set smaller. */
export interface Measure {
  value: string;
  unit: string;
}

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

/** A count: every digit below 10 000, then thousands (k), millions (M) and billions (G) with three digits. */
export function count(value: Known): string {
  if (value === null) return UNKNOWN;
  return Math.abs(value) < 10_000 ? whole.format(value) : scaled(value);
}

/** Something per second, with about three digits: 0.42, 7.8, 123, 4,560, 12.3k. */
export function rate(value: Known): string {
  if (value === null) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size < 0.005) return '<0.01';
  if (size < 1) return value.toFixed(2);
  if (size < 99.95) return value.toFixed(1);
  return count(value);
}

/** A duration given in milliseconds: µs below 1 ms, ms below 1 s, seconds above. */
export function duration(ms: Known): Measure {
  if (ms === null) return { value: UNKNOWN, unit: 'ms' };
  const size = Math.abs(ms);
  if (size > 0 && size < 0.9995) return { value: whole.format(ms * 1000), unit: 'µs' };
  if (size < 99.95) return { value: ms.toFixed(1), unit: 'ms' };
  if (size < 999.5) return { value: ms.toFixed(0), unit: 'ms' };
  if (size < 99_950) return { value: (ms / 1000).toFixed(2), unit: 's' };
  return { value: whole.format(ms / 1000), unit: 's' };
}

/** `duration` as one piece of text. */
export function durationText(ms: Known): string {
  if (ms === null) return UNKNOWN;
  const { value, unit } = duration(ms);
  return `${value} ${unit}`;
}

/** A mark on an axis of milliseconds: a round number, so without idle decimals: 0, 20 ms, 2.5 ms, 1.5 s. */
export function durationMark(ms: number): string {
  if (ms === 0) return '0';
  return Math.abs(ms) < 1000 ? `${Number(ms.toPrecision(3))} ms` : `${Number((ms / 1000).toPrecision(3))} s`;
}

/** A mark on an axis of counts or rates: 0, 0.5, 150, 2k. */
export function countMark(value: number): string {
  const size = Math.abs(value);
  if (size < 1000) return String(Number(value.toPrecision(3)));
  return size < 1e6 ? `${Number((value / 1e3).toPrecision(3))}k` : `${Number((value / 1e6).toPrecision(3))}M`;
}

/** A share between 0 and 1 as a percentage with one decimal. */
export function percent(share: Known): string {
  return share === null ? UNKNOWN : `${(share * 100).toFixed(1)} %`;
}

/** A mark on an axis of shares: 0 %, 25 %, 2.5 %. */
export function percentMark(share: number): string {
  return `${Number((share * 100).toPrecision(3))} %`;
}

/** A difference of two shares in points of a hundred, with its sign: +4.2 points. */
export function points(difference: Known): string {
  if (difference === null) return UNKNOWN;
  const value = (difference * 100).toFixed(1);
  return Number(value) === 0 ? '0 points' : `${difference > 0 ? '+' : '−'}${value.replace('-', '')} points`;
}

/** How long ago, coarsely: 0.4 s, 12 s, 3 min, 2 h. */
export function age(ms: Known): string {
  if (ms === null) return UNKNOWN;
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 119.5) return `${seconds.toFixed(0)} s`;
  if (seconds < 7170) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(0)} h`;
}

/** Local time of day of an RFC 3339 time, to the millisecond: 14:03:22.123. Other text comes back unchanged. */
export function timeOfDay(iso: string): string {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return iso;
  return `${clock(at.getTime() / 1000)}.${String(at.getMilliseconds()).padStart(3, '0')}`;
}

/** Local time of day of seconds since the epoch: 14:03:22. */
export function clock(seconds: number): string {
  const at = new Date(seconds * 1000);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
}

/** A name from the server's vocabulary for people: shape_batch becomes "shape batch". */
export function spoken(name: string | null): string {
  return name === null ? UNKNOWN : name.replaceAll('_', ' ');
}

function scaled(value: number): string {
  for (const [size, suffix] of [
    [1e9, 'G'],
    [1e6, 'M'],
  ] as const) {
    // 0.9995: what would round up to 1000 of the smaller unit is already one of this unit.
    if (Math.abs(value) >= size * 0.9995) return `${threeDigits(value / size)}${suffix}`;
  }
  return `${threeDigits(value / 1e3)}k`;
}

function threeDigits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}
