// Load per atom (SPEC B1) as bars on one continuous axis of context length. Pure.
//
// Invariant: bars have equal width and cover 0 to the longest range without holes; the sum over bars is the sum over
// atoms.
// Bound: BARS_MAX bars; a longer axis is drawn with wider bars, each the sum of a whole number of atoms.
import type { Atom } from './fleet';

export const BARS_MAX = 48;

/** One bar: `tokens` context tokens of `requests` live requests whose length is in [fromTokens, toTokens). */
export type Bar = Atom;

export function barsOf(atoms: readonly Atom[], most: number = BARS_MAX): Bar[] {
  if (atoms.length === 0) return [];
  const unit = Math.min(...atoms.map((atom) => atom.toTokens - atom.fromTokens));
  const end = Math.max(...atoms.map((atom) => atom.toTokens));
  const units = Math.ceil(end / unit);
  const width = unit * Math.ceil(units / most);
  const bars: Bar[] = Array.from({ length: Math.ceil(end / width) }, (_, index) => ({
    fromTokens: index * width,
    toTokens: (index + 1) * width,
    tokens: 0,
    requests: 0,
  }));
  for (const atom of atoms) {
    const bar = bars[Math.floor(Math.max(0, atom.fromTokens) / width)];
    if (bar === undefined) continue;
    bar.tokens += atom.tokens;
    bar.requests += atom.requests;
  }
  return bars;
}
