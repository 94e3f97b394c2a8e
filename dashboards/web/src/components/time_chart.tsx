// One chart of the last five minutes: uPlot on a canvas, with a legend in HTML that shows the newest values, or those
// under the pointer. All charts share one cursor. Colours are CSS variables read at every draw, so a change of scheme
// needs only a redraw.
//
// Cost: one redraw a second of at most POINTS_MAX points per series, about a millisecond.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { clock } from '../format';
import type { Known } from '../fleet';
import { WINDOW_SECONDS, type Measured, type Point } from '../history';

const HEIGHT_PX = 132;

export interface Line {
  label: string;
  field: Measured;
  /** Name of the CSS variable with its colour. */
  colour: string;
}

export interface ChartSpec {
  id: string;
  title: string;
  unit: string;
  lines: readonly Line[];
  text: (value: Known) => string;
  /** Text of the y axis' marks. */
  axisText: (value: number) => string;
  /** Upper end of the y axis where it is fixed. */
  top?: number;
}

export function TimeChart({ spec, history }: { spec: ChartSpec; history: readonly Point[] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hovered, setHovered] = useState<number | null>(null);
  const data = useMemo(() => columns(spec, history), [spec, history]);

  useEffect(() => {
    const host = box.current;
    if (host === null) return;
    const made = new uPlot(options(spec, host.clientWidth, setHovered), [[]], host);
    plot.current = made;
    const sizes = new ResizeObserver(() => made.setSize({ width: host.clientWidth, height: HEIGHT_PX }));
    sizes.observe(host);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    const redraw = () => made.redraw();
    scheme.addEventListener('change', redraw);
    return () => {
      scheme.removeEventListener('change', redraw);
      sizes.disconnect();
      made.destroy();
    };
  }, [spec]);

  useEffect(() => {
    const end = history.at(-1)?.at;
    if (plot.current === null || end === undefined) return;
    plot.current.batch(() => {
      plot.current?.setData(data, false);
      plot.current?.setScale('x', { min: end - WINDOW_SECONDS, max: end });
    });
  }, [data, history]);

  const at = (hovered === null ? undefined : history[hovered]) ?? history.at(-1);
  const empty = !history.some((point) => spec.lines.some((line) => point[line.field] !== null));
  const values = spec.lines.map((line) => ({ line, value: spec.text(at?.[line.field] ?? null) }));
  const words = values.map(({ line, value }) => `${line.label} ${value}`).join(', ');
  return (
    <section class="panel chart" data-testid={`chart-${spec.id}`} aria-labelledby={`chart-${spec.id}-title`}>
      <div class="panel-head">
        <h2 id={`chart-${spec.id}-title`}>
          {spec.title} {spec.unit !== '' && <span class="unit">{spec.unit}</span>}
        </h2>
        <p class="legend">
          {hovered !== null && at !== undefined && <span class="at">{clock(at.at)}</span>}
          {values.map(({ line, value }) => (
            <span key={line.field}>
              <i class="swatch" style={{ background: `var(${line.colour})` }} />
              {line.label} <b>{value}</b>
            </span>
          ))}
        </p>
      </div>
      <div
        class={empty ? 'plot unknown' : 'plot'}
        role="img"
        aria-label={`${spec.title}, last five minutes. Now: ${words}.`}
        ref={box}
      >
        {empty && <p class="empty">no data yet</p>}
      </div>
    </section>
  );
}

function columns(spec: ChartSpec, history: readonly Point[]): uPlot.AlignedData {
  return [history.map((point) => point.at), ...spec.lines.map((line) => history.map((point) => point[line.field]))];
}

function options(spec: ChartSpec, width: number, onHover: (index: number | null) => void): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: () => css('--muted'),
    grid: { stroke: () => css('--grid'), width: 1 },
    ticks: { show: false },
    font: '11px system-ui, sans-serif',
  };
  return {
    width,
    height: HEIGHT_PX,
    padding: [6, 18, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: 'fleet' } },
    scales: {
      x: { time: true },
      y: { range: (_plot, _low, high) => [0, spec.top ?? (high > 0 ? high * 1.15 : 1)] },
    },
    axes: [
      {
        ...axis,
        size: 24,
        space: 60,
        values: (_plot, splits) => splits.map((at) => clock(at).slice(0, 5)),
        incrs: [60, 120],
      },
      { ...axis, size: 54, space: 28, gap: 4, values: (_plot, splits) => splits.map((split) => spec.axisText(split)) },
    ],
    series: [
      {},
      ...spec.lines.map((line) => ({
        label: line.label,
        stroke: () => css(line.colour),
        width: 1.5,
        points: { show: false },
      })),
    ],
    hooks: { setCursor: [(self) => onHover(self.cursor.idx ?? null)] },
  };
}

function css(variable: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}
