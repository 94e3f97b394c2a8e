// The funnel as a waterfall: each layer's share of the prompt tokens, and below it what did not reach the next one and
// why. A loss is a link that picks it.
import { count, durationText, percent, points } from '../format';
import type { Known } from '../fleet';
import { LAYERS, waterfall, type Funnel, type Step } from '../funnel';
import { reasonWords } from '../reasons';
import { Floating } from './bars';
import { Heads, Panel, Scroll } from './panel';

interface Props {
  after: Funnel;
  /** What it is compared with, or `null`. */
  before: Funnel | null;
  picked: string | null;
  /** Without it, losses are no links. */
  addressOfLoss?: (id: string) => string;
}

export function Waterfall({ after, before, picked, addressOfLoss }: Props) {
  const steps = waterfall(after, before ?? undefined);
  const names = ['Layer', 'Reached', 'Share|number'];
  if (before !== null) names.push('Before|number', 'Change|number');
  names.push('Tokens|number', 'Time to compute|number');
  return (
    <Panel
      id="waterfall"
      title="From prompt to reuse"
      note={`${count(after.requests)} ${after.requests === 1 ? 'request' : 'requests'}; a loss says why`}
    >
      <Scroll label="Funnel">
        <table class="waterfall" data-testid="waterfall">
          <Heads names={names} />
          <tbody>
            {steps.map((step) => (
              <StepRow key={`${step.kind} ${step.id}`} step={step} compared={before !== null}>
                {step.kind === 'layer' || addressOfLoss === undefined ? (
                  titleOf(step)
                ) : (
                  <a
                    href={addressOfLoss(step.id)}
                    data-testid={`loss-${step.id}`}
                    aria-current={step.id === picked ? 'true' : undefined}
                    title={reasonWords(step.id).means}
                  >
                    {titleOf(step)}
                  </a>
                )}
              </StepRow>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

interface RowProps {
  step: Step;
  compared: boolean;
  children: preact.ComponentChildren;
}

function StepRow({ step, compared, children }: RowProps) {
  const { kind, share, shareBefore, seconds } = step;
  const isLoss = kind === 'loss';
  const effect = isLoss ? -1 : 1;
  const difference = share === null || shareBefore === null ? null : effect * (share - shareBefore);
  const isWorse = difference !== null && difference <= -0.02;
  return (
    <tr class={kind} data-testid={`step-${step.id}`} title={isLoss ? reasonWords(step.id).means : meaning(step.id)}>
      <th scope="row">{children}</th>
      <td class="bar">
        <Floating from={step.from} to={step.to} colour={colourOf(step)} />
      </td>
      <td class="number">{isLoss ? signed(negated(share), percent) : percent(share)}</td>
      {compared && <td class="number">{isLoss ? signed(negated(shareBefore), percent) : percent(shareBefore)}</td>}
      {compared && (
        <td class="number" data-tone={isWorse ? 'bad' : undefined}>
          {points(difference)}
        </td>
      )}
      <td class="number">{isLoss ? signed(-step.tokens, count) : count(step.tokens)}</td>
      <td class="number">
        {isLoss ? signed(seconds === null ? null : seconds * 1000, durationText).replace('+', '') : ''}
      </td>
    </tr>
  );
}

function titleOf({ kind, id }: Step): string {
  return kind === 'loss' ? reasonWords(id).title : (LAYERS.find((layer) => layer.id === id)?.title ?? id);
}

function meaning(id: string): string {
  return LAYERS.find((layer) => layer.id === id)?.means ?? '';
}

function colourOf({ kind, id, tokens }: Step): string {
  if (kind === 'loss') return tokens < 0 ? '--good' : '--bad';
  return id === 'delivered' ? '--series-2' : '--series-1';
}

const negated = (share: Known) => (share === null ? null : -share);

/** What a loss does to the layer below it, with its sign. */
function signed(value: Known, text: (value: Known) => string): string {
  if (value === null || value === 0) return text(value === null ? null : 0);
  return `${value > 0 ? '+' : '−'}${text(Math.abs(value))}`;
}
