// An answer of SQL as a plot.
import { useMemo } from 'preact/hooks';
import { clock, count, countMark, rate } from '../format';
import { drawingOf, LINES_MAX } from '../plotting';
import type { Result } from '../sql';
import { LineChart } from './line_chart';

const COLOURS = ['--series-1', '--series-2', '--series-3', '--series-4', '--bad', '--muted', '--text', '--focus'];

export function ResultPlot({ result }: { result: Result }) {
  const drawing = useMemo(() => drawingOf(result), [result]);
  const lines = useMemo(
    () => drawing?.lines.map((line, index) => ({ ...line, colour: COLOURS[index] ?? '--muted' })) ?? [],
    [drawing],
  );
  if (drawing === null) {
    return (
      <p class="empty" data-testid="plot-nothing">
        To be drawn, an answer needs a column of times or numbers for the x axis, and another column of numbers.
      </p>
    );
  }
  return (
    <>
      <LineChart
        id="result"
        title={`over ${drawing.xName}`}
        axis={drawing.axis}
        x={drawing.x}
        lines={lines}
        height={260}
        text={rate}
        axisText={countMark}
        xText={drawing.axis === 'time' ? clock : count}
      />
      {drawing.leftOut > 0 && (
        <p class="muted">
          {count(drawing.leftOut)} values of further lines are left out: {LINES_MAX} lines are drawn.
        </p>
      )}
    </>
  );
}
