// Load per atom: context tokens of live requests by context length. Bars are plain elements; a hidden table says the
// same in numbers.
import { barsOf, type Bar } from '../atoms';
import type { Atom } from '../fleet';
import { count } from '../format';

export function AtomChart({ atoms }: { atoms: readonly Atom[] | null }) {
  const bars = barsOf(atoms ?? []);
  const most = Math.max(0, ...bars.map((bar) => bar.tokens));
  const total = bars.reduce((sum, bar) => sum + bar.tokens, 0);
  const width = bars[0] === undefined ? null : bars[0].toTokens - bars[0].fromTokens;
  return (
    <section class="panel chart" data-testid="chart-atoms" aria-labelledby="chart-atoms-title">
      <div class="panel-head">
        <h2 id="chart-atoms-title">
          Load by context length <span class="unit">{width === null ? 'tokens' : `tokens per ${count(width)}`}</span>
        </h2>
        <p class="legend">
          <span>
            <i class="swatch" style={{ background: 'var(--series-1)' }} />
            all <b data-testid="atoms-total">{atoms === null ? count(null) : count(total)}</b>
          </span>
        </p>
      </div>
      {most > 0 ? (
        <Bars bars={bars} most={most} />
      ) : (
        <div class="plot">
          <p class="empty">{atoms === null ? 'no data yet' : 'no live requests'}</p>
        </div>
      )}
    </section>
  );
}

function Bars({ bars, most }: { bars: readonly Bar[]; most: number }) {
  const middle = bars[Math.floor(bars.length / 2)];
  return (
    <>
      <div class="atoms" aria-hidden="true">
        <div class="atoms-scale">
          <span>{count(most)}</span>
          <span>0</span>
        </div>
        <div class="atoms-bars">
          {bars.map((bar) => (
            <div key={bar.fromTokens} class="atom" title={words(bar)} data-testid="atom-bar">
              <div style={{ height: `${(bar.tokens / most) * 100}%` }} />
            </div>
          ))}
        </div>
        <div class="atoms-axis">
          <span>0</span>
          {bars.length > 2 && middle !== undefined && <span>{count(middle.fromTokens)}</span>}
          <span>{count(bars.at(-1)?.toTokens ?? null)}</span>
        </div>
      </div>
      <table class="visually-hidden">
        <caption>Load by context length</caption>
        <thead>
          <tr>
            <th scope="col">Context length</th>
            <th scope="col">Tokens</th>
            <th scope="col">Requests</th>
          </tr>
        </thead>
        <tbody>
          {bars
            .filter((bar) => bar.tokens > 0)
            .map((bar) => (
              <tr key={bar.fromTokens}>
                <th scope="row">
                  {bar.fromTokens} to {bar.toTokens}
                </th>
                <td>{bar.tokens}</td>
                <td>{bar.requests}</td>
              </tr>
            ))}
        </tbody>
      </table>
    </>
  );
}

function words(bar: Bar): string {
  return `${bar.fromTokens} to ${bar.toTokens} tokens of context: ${bar.tokens} tokens in ${bar.requests} requests`;
}
