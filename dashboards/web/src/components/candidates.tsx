// The candidates of one decision: a bar of the terms of each one's cost on one scale, and the terms in numbers.
import { count, durationText } from '../format';
import { COLOURS } from '../views/view';
import type { Candidate } from '../life';
import { Meter } from './bars';
import { Heads, Scroll } from './panel';

interface Props {
  candidates: readonly Candidate[];
  nameOf: (id: number | null) => string;
}

export function Candidates({ candidates, nameOf }: Props) {
  if (candidates.length === 0) return <p class="empty">no candidate was weighed</p>;
  const terms = [...new Set(candidates.flatMap((candidate) => candidate.terms.map(({ name }) => name)))];
  const most = Math.max(1e-9, ...candidates.map(({ total }) => total ?? 0));
  const seconds = (candidate: Candidate, name: string) =>
    candidate.terms.find((term) => term.name === name)?.seconds ?? null;
  const hasError = candidates.some(({ error }) => error !== null);
  const hasCompared = candidates.some(({ compared }) => compared !== null);
  const text = (value: number | null) => durationText(value === null ? null : value * 1000);
  return (
    <Scroll label="Candidates">
      <table data-testid="candidates">
        <Heads
          names={[
            'Instance',
            'Cost',
            'Predicted hit|number',
            ...terms.map((term) => `${term.replaceAll('_', ' ')}|number`),
            'Sum|number',
            ...(hasCompared ? ['Compared|number'] : []),
          ]}
        />
        <tbody>
          {candidates.map((candidate) => (
            <tr key={candidate.instance} data-testid={candidate.chosen ? 'chosen' : undefined}>
              <th scope="row">
                {nameOf(candidate.instance)}{' '}
                {candidate.chosen && (
                  <span class="badge" data-tone="good">
                    chosen
                  </span>
                )}
              </th>
              <td class="bar">
                <Meter
                  parts={terms.map((term, index) => ({
                    share: (seconds(candidate, term) ?? 0) / most,
                    colour: COLOURS[index % COLOURS.length] ?? '--series-1',
                  }))}
                />
              </td>
              <td class="number">{count(candidate.hitTokens)} tokens</td>
              {terms.map((term, index) => (
                <td key={term} class="number">
                  <i class="swatch" style={{ background: `var(${COLOURS[index % COLOURS.length]})` }} />
                  {text(seconds(candidate, term))}
                </td>
              ))}
              <td class="number">
                {text(candidate.total)}
                {hasError && <span class="unit"> ± {text(candidate.error)}</span>}
              </td>
              {hasCompared && <td class="number">{text(candidate.compared)}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
