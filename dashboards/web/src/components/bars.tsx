// Small bars in HTML: a meter of parts of a whole, a floating bar of a waterfall, and a cell of a heat map. The text
// beside or in each carries the number.
import type { ComponentChildren } from 'preact';
import type { Known } from '../fleet';

const clip = (share: Known) => Math.min(1, Math.max(0, share ?? 0));

export function Meter({ parts }: { parts: { share: Known; colour: string }[] }) {
  return (
    <span class="meter" aria-hidden="true">
      {parts.map(({ share, colour }, index) => (
        <i key={index} style={{ width: `${clip(share) * 100}%`, background: `var(${colour})` }} />
      ))}
    </span>
  );
}

/** From one share of the width to another. */
export function Floating({ from, to, colour }: { from: number; to: number; colour: string }) {
  const [start, end] = [clip(from), clip(to)];
  return (
    <span class="floating" aria-hidden="true">
      <i style={{ left: `${start * 100}%`, width: `${(end - start) * 100}%`, background: `var(${colour})` }} />
    </span>
  );
}

interface HeatCellProps {
  share: Known;
  title: string;
  /** A strong line before the cell. */
  edge?: 'cut' | undefined;
  children: ComponentChildren;
}

/** A cell of a heat map: the stronger the colour the larger the share. */
export function HeatCell({ share, title, edge, children }: HeatCellProps) {
  return (
    <td class={edge === undefined ? 'heat number' : `heat number ${edge}`} title={title}>
      <i aria-hidden="true" style={{ opacity: clip(share) }} />
      <span>{children}</span>
    </td>
  );
}
