// One chart of lines: uPlot on a canvas, with a legend in HTML that shows the newest values, or those under the pointer.
// Charts over live time share one cursor. Colours are CSS variables read at every draw, so a change of scheme needs only
// a redraw.
//
// Invariant: what the canvas shows is also said in words (`aria-label`), and marks are in the legend.
// Cost: one redraw per change of the data, about a millisecond for 1200 points a line.
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { clock } from '../format';
import type { Known } from '../fleet';

const HEIGHT_PX = 132;

export interface Line {
  label: string;
  values: readonly Known[];
  /** Name of the CSS variable with its colour. */
  colour: string;
  /** `steps` keeps a value until the next point. */
  shape?: 'line' | 'steps';
}

/** A vertical line at `x`. */
export interface Mark {
  x: number;
  label: string;
}

export interface LineChartProps {
  id: string;
  title: string;
  unit?: string;
  /** Seconds since the epoch, or numbers above 0 with `axis` `log`. Rising. */
  x: readonly number[];
  lines: readonly Line[];
  axis?: 'time' | 'log';
  /** Ends of the x axis; those of the data where it is not given. */
  range?: readonly [number, number];
  /** Upper end of the y axis where it is fixed. */
  top?: number;
  text: (value: Known) => string;
  /** Text of the y axis' marks. */
  axisText: (value: number) => string;
  /** Text of a place on the x axis. */
  xText?: (x: number) => string;
  marks?: readonly Mark[];
  height?: number;
  /** Charts with the same name share their cursor. */
  cursor?: string;
  /** What the chart says while there is nothing to draw. */
  empty?: string;
  /** Called with the ends of a stretch that was dragged over. */
  onStretch?: (from: number, to: number) => void;
}

export function LineChart(props: LineChartProps) {
  const { id, title, unit = '', x, lines, text, marks = [], axis = 'time', xText = clock } = props;
  const [hovered, setHovered] = useState<number | null>(null);
  const at = hovered !== null && hovered < x.length ? hovered : x.length - 1;
  const values = lines.map((line) => ({ line, value: text(line.values[at] ?? null) }));
  const nothing = !lines.some((line) => line.values.some((value) => value !== null));
  const words = [
    ...values.map(({ line, value }) => `${line.label} ${value}`),
    ...marks.map((mark) => `${mark.label} at ${xText(mark.x)}`),
  ].join(', ');
  const box = usePlot({ ...props, marks, axis, xText }, setHovered);
  return (
    <section class="panel chart" data-testid={`chart-${id}`} aria-labelledby={`chart-${id}-title`}>
      <div class="panel-head">
        <h2 id={`chart-${id}-title`}>
          {title} {unit !== '' && <span class="unit">{unit}</span>}
        </h2>
        <p class="legend">
          {hovered !== null && x[at] !== undefined && <span class="at">{xText(x[at])}</span>}
          {values.map(({ line, value }) => (
            <span key={line.label}>
              <i class="swatch" style={{ background: `var(${line.colour})` }} />
              {line.label} <b>{value}</b>
            </span>
          ))}
        </p>
      </div>
      <div
        class={nothing ? 'plot unknown' : 'plot'}
        role="img"
        aria-label={`${title}. Newest: ${words}.`}
        style={{ height: `${props.height ?? HEIGHT_PX}px` }}
        ref={box}
      >
        {nothing && <p class="empty">{props.empty ?? 'no data yet'}</p>}
      </div>
    </section>
  );
}

/** Keeps a uPlot in the returned element; made anew only when the lines themselves change. */
function usePlot(
  props: LineChartProps & Required<Pick<LineChartProps, 'marks' | 'axis' | 'xText'>>,
  onHover: (index: number | null) => void,
) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const newest = useRef(props);
  newest.current = props;
  const { x, lines, range, marks } = props;
  const shape = `${props.axis} ${lines.map((line) => `${line.label} ${line.colour} ${line.shape ?? ''}`).join('|')}`;
  const height = props.height ?? HEIGHT_PX;

  useEffect(() => {
    const host = box.current;
    if (host === null) return;
    const made = new uPlot(options(newest, { width: host.clientWidth, height }, onHover), [[]], host);
    plot.current = made;
    const sizes = new ResizeObserver(() => made.setSize({ width: host.clientWidth, height }));
    sizes.observe(host);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    const redraw = () => made.redraw();
    scheme.addEventListener('change', redraw);
    return () => {
      scheme.removeEventListener('change', redraw);
      sizes.disconnect();
      made.destroy();
    };
  }, [shape, height]);

  useEffect(() => {
    const [from, to] = range ?? [x[0], x.at(-1)];
    if (plot.current === null || from === undefined || to === undefined) return;
    const data = [[...x], ...lines.map((line) => [...line.values])] as uPlot.AlignedData;
    plot.current.batch(() => {
      plot.current?.setData(data, false);
      plot.current?.setScale('x', { min: from, max: Math.max(to, from + 1e-6) });
    });
  }, [x, lines, range?.[0], range?.[1], shape]);
  useEffect(() => plot.current?.redraw(false), [marks.map((mark) => `${mark.x} ${mark.label}`).join('|')]);
  return box;
}

function options(
  newest: { current: LineChartProps & Required<Pick<LineChartProps, 'marks' | 'axis' | 'xText'>> },
  size: { width: number; height: number },
  onHover: (index: number | null) => void,
): uPlot.Options {
  const { lines, axis, cursor, onStretch } = newest.current;
  const axes: uPlot.Axis = {
    stroke: () => css('--muted'),
    grid: { stroke: () => css('--grid'), width: 1 },
    ticks: { show: false },
    font: '11px system-ui, sans-serif',
  };
  const stretched = (self: uPlot) => {
    const { left, width } = self.select;
    if (width < 5) return;
    newest.current.onStretch?.(self.posToVal(left, 'x'), self.posToVal(left + width, 'x'));
    self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  };
  return {
    ...size,
    padding: [6, 26, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: onStretch !== undefined, y: false, setScale: false },
      points: { size: 6 },
      ...(cursor === undefined ? {} : { sync: { key: cursor } }),
    },
    scales: {
      x: {
        ...(axis === 'time' ? { time: true } : { time: false, distr: 3, log: 10 }),
        range: (_plot, low, high) => [low, high],
      },
      y: { range: (_plot, _low, high) => [0, newest.current.top ?? (high > 0 ? high * 1.15 : 1)] },
    },
    axes: [
      {
        ...axes,
        size: 24,
        space: 60,
        values: (_plot, splits) => axisTexts(splits, newest.current),
        ...(axis === 'time' ? { incrs: [10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400], space: 80 } : {}),
      },
      {
        ...axes,
        size: 54,
        space: 28,
        gap: 4,
        values: (_plot, splits) => splits.map((split) => newest.current.axisText(split)),
      },
    ],
    series: [{}, ...lines.map(seriesOf)],
    hooks: {
      setCursor: [(self) => onHover(self.cursor.idx ?? null)],
      setSelect: [stretched],
      draw: [(self) => newest.current.marks.forEach((mark, line) => drawMark(self, mark, line))],
    },
  };
}

/** Times that are whole minutes are told without seconds. */
function axisTexts(
  splits: readonly (number | null)[],
  { axis, xText }: { axis: 'time' | 'log'; xText: (x: number) => string },
) {
  const isWhole = axis === 'time' && splits.every((at) => at === null || at % 60 === 0);
  return splits.map((at) => (at === null ? '' : isWhole ? clock(at).slice(0, 5) : xText(at)));
}

function seriesOf(line: Line): uPlot.Series {
  const steps = line.shape === 'steps' ? uPlot.paths.stepped?.({ align: 1 }) : undefined;
  return {
    label: line.label,
    stroke: () => css(line.colour),
    width: 1.5,
    points: { show: false },
    ...(steps === undefined ? {} : { paths: steps }),
  };
}

/** Labels stand on lines of their own, so that near marks stay readable. */
function drawMark(self: uPlot, mark: Mark, line: number): void {
  const { ctx, bbox } = self;
  const at = Math.round(self.valToPos(mark.x, 'x', true));
  if (at < bbox.left || at > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = css('--warn');
  ctx.fillStyle = css('--warn');
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(at, bbox.top);
  ctx.lineTo(at, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  const isRight = at > bbox.left + bbox.width * 0.7;
  ctx.textAlign = isRight ? 'right' : 'left';
  ctx.textBaseline = 'top';
  ctx.fillText(mark.label, at + (isRight ? -4 : 4) * devicePixelRatio, bbox.top + line * 14 * devicePixelRatio);
  ctx.restore();
}

function css(variable: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}
