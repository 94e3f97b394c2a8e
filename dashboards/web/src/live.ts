// What the page knows of the live stream: a reducer over what happened to it, and from that the state shown in the
// heading. Pure.
//
// Invariant: the last good event stays on the page, marked stale or reconnecting, until a newer one replaces it.
import { parseFleet, type Fleet } from './fleet';
import { append, backfill, pointOf, type Point } from './history';

/** Past this age the numbers are called stale. */
export const STALE_MS = 5000;

/** A difference between the two clocks below this is taken as the Date header's coarseness and ignored. */
const SKEW_MIN_MS = 2000;

export interface Live {
  phase: 'connecting' | 'open' | 'retrying';
  fleet: Fleet | null;
  history: readonly Point[];
  /** This machine's clock minus the server's, milliseconds. */
  skewMs: number;
  /** Why the stream is down, or why the last event could not be read. */
  problem: string | null;
  /** When the next attempt starts, milliseconds since the epoch on this machine's clock. */
  retryAtMs: number | null;
  /** The server asks for a key (401). */
  keyNeeded: boolean;
  unreadable: number;
}

export type LiveEvent =
  | { type: 'opened'; skewMs: number }
  | { type: 'event'; data: string }
  | { type: 'failed'; problem: string; status: number; retryAtMs: number }
  | { type: 'backfilled'; points: readonly Point[] };

export const NOTHING_YET: Live = {
  phase: 'connecting',
  fleet: null,
  history: [],
  skewMs: 0,
  problem: null,
  retryAtMs: null,
  keyNeeded: false,
  unreadable: 0,
};

export function reduce(live: Live, event: LiveEvent): Live {
  switch (event.type) {
    case 'opened':
      return { ...live, phase: 'open', skewMs: event.skewMs, problem: null, retryAtMs: null, keyNeeded: false };
    case 'event':
      return read(live, event.data);
    case 'failed':
      return {
        ...live,
        phase: 'retrying',
        problem: event.problem,
        retryAtMs: event.retryAtMs,
        keyNeeded: event.status === 401,
      };
    case 'backfilled':
      return { ...live, history: backfill(live.history, event.points) };
  }
}

function read(live: Live, data: string): Live {
  try {
    const fleet = parseFleet(data);
    return { ...live, fleet, history: append(live.history, pointOf(fleet)), problem: null };
  } catch (error) {
    return { ...live, unreadable: live.unreadable + 1, problem: `Unreadable event: ${(error as Error).message}` };
  }
}

export interface Liveness {
  state: 'connecting' | 'live' | 'stale' | 'reconnecting';
  /** Age of the numbers shown; `null` while there are none. */
  ageMs: number | null;
}

/** The state at `nowMs` on this machine's clock. */
export function liveness(live: Live, nowMs: number): Liveness {
  const ageMs = live.fleet === null ? null : Math.max(0, nowMs - live.skewMs - live.fleet.asOfMs);
  if (live.phase === 'retrying') return { state: 'reconnecting', ageMs };
  if (ageMs === null) return { state: 'connecting', ageMs };
  return { state: ageMs > STALE_MS ? 'stale' : 'live', ageMs };
}

/** How far this machine's clock is ahead of the server's, from a response's Date header and when it came. */
export function clockSkewMs(dateHeader: string | null, receivedAtMs: number): number {
  const served = dateHeader === null ? Number.NaN : Date.parse(dateHeader);
  if (Number.isNaN(served)) return 0;
  const skew = receivedAtMs - (served + 500);
  return Math.abs(skew) < SKEW_MIN_MS ? 0 : skew;
}

/** Pause before attempt number `attempt` (from 0): 1, 2, 4, 8, then 10 s. */
export function retryDelayMs(attempt: number): number {
  return Math.min(10_000, 1000 * 2 ** Math.min(attempt, 10));
}
