// Which five things are drawn over time, and how.
import { count, countMark, durationMark, durationText, percent, rate } from '../format';
import type { Point } from '../history';
import { TimeChart, type ChartSpec } from './time_chart';

const wholePercent = (share: number) => `${Math.round(share * 100)} %`;

const CHARTS: readonly ChartSpec[] = [
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
    unit: '',
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
    unit: '',
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
    unit: '',
    text: percent,
    axisText: wholePercent,
    top: 1,
    lines: [{ label: 'last minute', field: 'hitRate', colour: '--series-2' }],
  },
  {
    id: 'requests',
    title: 'Requests',
    unit: '',
    text: count,
    axisText: countMark,
    lines: [
      { label: 'running', field: 'running', colour: '--series-1' },
      { label: 'waiting', field: 'waiting', colour: '--series-3' },
    ],
  },
];

export function TimeCharts({ history }: { history: readonly Point[] }) {
  return (
    <>
      {CHARTS.map((spec) => (
        <TimeChart key={spec.id} spec={spec} history={history} />
      ))}
    </>
  );
}
