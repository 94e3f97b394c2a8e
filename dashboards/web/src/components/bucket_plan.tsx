// The bucket plan of one model: its ranges, the instances that serve each, and how even the load is.
import { perInstance, type Plan } from '../buckets';
import { clock, count, spoken, UNKNOWN } from '../format';
import { Meter } from './bars';
import { Heads, Scroll } from './panel';

interface Props {
  plan: Plan;
  nameOf: (instance: number) => string;
}

export function BucketPlan({ plan, nameOf }: Props) {
  const most = Math.max(1e-9, ...plan.buckets.map((bucket) => perInstance(bucket) ?? 0));
  const decimals = (value: number | null) => (value === null ? UNKNOWN : String(Number(value.toPrecision(3))));
  return (
    <div class="decision" data-testid="bucket-plan">
      <p>
        <b>{plan.model}</b>: {spoken(plan.state)}
        {plan.at === null ? '' : `, since ${clock(plan.at / 1000)} (${spoken(plan.trigger)})`}. Imbalance{' '}
        {decimals(plan.imbalance)}
        {plan.imbalanceBefore === null ? '' : `, ${decimals(plan.imbalanceBefore)} with the plan before`};{' '}
        {count(plan.moved)} instances got another range.
      </p>
      <Scroll label={`Buckets of ${plan.model}`}>
        <table class="map">
          <Heads
            names={[
              'Bucket|number',
              'Prompt tokens|number',
              'Instances',
              'Load per instance',
              `Load, in instances|number`,
            ]}
          />
          <tbody>
            {plan.buckets.map((bucket) => (
              <tr key={bucket.bucket}>
                <th scope="row" class="number">
                  {bucket.bucket}
                </th>
                <td class="number">
                  {count(bucket.from)} {bucket.to === null ? 'and more' : `to ${count(bucket.to)}`}
                </td>
                <td>{bucket.instances.map(nameOf).join(', ')}</td>
                <td>
                  <span class="measured">
                    <Meter parts={[{ share: (perInstance(bucket) ?? 0) / most, colour: '--series-1' }]} />
                    <span class="number">{decimals(perInstance(bucket))}</span>
                  </span>
                </td>
                <td class="number">{decimals(bucket.load)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </div>
  );
}
