// Which five things of the fleet are drawn over the last five minutes, and how.
import { useMemo } from 'preact/hooks';
import { count, countMark, durationMark, durationText, percent, percentMark, rate } from '../format';
import { WINDOW_SECONDS, type Measured, type Point } from '../history';
import { LineChart, type LineChartProps } from './line_chart';

type Spec = Pick<LineChartProps, 'id' | 'title' | 'unit' | 'text' | 'axisText' | 'top'> & {
  lines: readonly { label: string; field: Measured; colour: string }[];
};

const CHARTS: readonly Spec[] = [
  {
    id: 'tokens',
    title: 'Tokens',
    unit: 'tokens/s',
    text: rate,
    axisText: countMark,
    lines: [
      { label: 'output', field: 'tokensPerSecond', colour: '--series-1' },
      { label: 'prompt', field: 'promptTokensPerSecond', colour: '--series-2' },
    ],
  },
  {
    id: 'ttft',
    title: 'Time to first token',
    text: durationText,
    axisText: durationMark,
    lines: [
      { label: 'p50', field: 'ttftP50', colour: '--series-1' },
      { label: 'p95', field: 'ttftP95', colour: '--series-3' },
    ],
  },
  {
    id: 'itl',
    title: 'Inter-token latency',
    text: durationText,
    axisText: durationMark,
    lines: [
      { label: 'p50', field: 'itlP50', colour: '--series-1' },
      { label: 'p95', field: 'itlP95', colour: '--series-3' },
    ],
  },
  {
    id: 'hit-rate',
    title: 'Cache hit rate',
    text: percent,
    axisText: percentMark,
    top: 1,
    lines: [{ label: 'last minute', field: 'hitRate', colour: '--series-2' }],
  },
  {
    id: 'requests',
    title: 'Requests',
    text: count,
    axisText: countMark,
    lines: [
      { label: 'running', field: 'running', colour: '--series-1' },
      { label: 'waiting', field: 'waiting', colour: '--series-3' },
    ],
  },
];

export function TimeCharts({ history }: { history: readonly Point[] }) {
  const charts = useMemo(() => chartsOf(history), [history]);
  return (
    <>
      {charts.map((chart) => (
        <LineChart key={chart.id} {...chart} cursor="fleet" />
      ))}
    </>
  );
}

function chartsOf(history: readonly Point[]): LineChartProps[] {
  const x = history.map((point) => point.at);
  const end = x.at(-1) ?? 0;
  return CHARTS.map(({ lines, ...spec }) => ({
    ...spec,
    x,
    lines: lines.map(({ field, ...line }) => ({ ...line, values: history.map((point) => point[field]) })),
    range: [end - WINDOW_SECONDS, end],
  }));
}
