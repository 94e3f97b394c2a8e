// What every view is given.
import type { Fleet } from '../fleet';
import type { Point } from '../history';
import type { Place } from '../place';
import type { Go } from '../use_place';

export interface ViewProps {
  place: Place;
  go: Go;
  /** Time of the newest live event shown, milliseconds since the epoch; stands still while paused. */
  beat: number | null;
  fleet: Fleet | null;
  history: readonly Point[];
  /** Tables of the server; `null` until it has told. */
  tables: ReadonlySet<string> | null;
}

/** Least time between two questions of a view that is looked at, milliseconds. */
export const OFTEN_MS = 2000;
export const SELDOM_MS = 10_000;

/** Colours of lines, in the order in which they are used. */
export const COLOURS = ['--series-1', '--series-2', '--series-3', '--series-4'] as const;
