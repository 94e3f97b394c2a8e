// The last five minutes of the fleet, as the charts draw them.
//
// Invariant: times rise strictly. A hole longer than GAP_SECONDS is one point with every value unknown, so that a chart
// breaks its line instead of inventing what happened. Bound: WINDOW_SECONDS of points, POINTS_MAX at most; the oldest
// are dropped.
import type { Fleet, Known } from './fleet';

export const WINDOW_SECONDS = 300;
export const GAP_SECONDS = 5;
export const POINTS_MAX = 1200;

/** The fleet at one moment. `at` is in seconds since the epoch. */
export interface Point {
  at: number;
  tokensPerSecond: Known;
  promptTokensPerSecond: Known;
  ttftP50: Known;
  ttftP95: Known;
  itlP50: Known;
  itlP95: Known;
  hitRate: Known;
  running: Known;
  waiting: Known;
}

export type Measured = Exclude<keyof Point, 'at'>;

export function pointOf(fleet: Fleet): Point {
  return {
    at: fleet.asOfMs / 1000,
    tokensPerSecond: fleet.tokensPerSecond,
    promptTokensPerSecond: fleet.promptTokensPerSecond,
    ttftP50: fleet.ttftMs.p50,
    ttftP95: fleet.ttftMs.p95,
    itlP50: fleet.itlMs.p50,
    itlP95: fleet.itlMs.p95,
    hitRate: fleet.hitRate,
    running: fleet.running,
    waiting: fleet.waiting,
  };
}

/** A point at `at` of which nothing is known yet. */
export function unknownAt(at: number): Point {
  return {
    at,
    tokensPerSecond: null,
    promptTokensPerSecond: null,
    ttftP50: null,
    ttftP95: null,
    itlP50: null,
    itlP95: null,
    hitRate: null,
    running: null,
    waiting: null,
  };
}

/** Adds the newest point. Points at or after its time give way to it (a clock set back, or a repetition). */
export function append(history: readonly Point[], point: Point): Point[] {
  const kept = history.filter((old) => old.at < point.at && old.at >= point.at - WINDOW_SECONDS);
  return [...kept, ...hole(kept.at(-1), point), point].slice(-POINTS_MAX);
}

/** Puts older points before what the page has seen itself; where both know a time, what the page saw stands. */
export function backfill(history: readonly Point[], older: readonly Point[]): Point[] {
  const first = history[0];
  if (first === undefined) return older.slice(-POINTS_MAX);
  const before = older.filter((old) => old.at < first.at);
  return [...before, ...hole(before.at(-1), first), ...history].slice(-POINTS_MAX);
}

function hole(before: Point | undefined, after: Point): Point[] {
  return before !== undefined && after.at - before.at > GAP_SECONDS ? [unknownAt((before.at + after.at) / 2)] : [];
}
