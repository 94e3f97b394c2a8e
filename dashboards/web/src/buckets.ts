// The bucket plans in force (SPEC B3), one per model: how the length axis is cut and which instances serve which part.
// Pure.
import { numberOf, textOf, type Row } from './sql';
import type { Known } from './fleet';

export interface Bucket {
  bucket: number;
  from: number;
  /** `null`: without end. */
  to: Known;
  instances: number[];
  /** Work in it when it was cut, in instances that it fills. */
  load: Known;
}

export interface Plan {
  model: string;
  at: Known;
  state: string;
  trigger: string;
  target: Known;
  imbalance: Known;
  imbalanceBefore: Known;
  moved: Known;
  buckets: Bucket[];
}

/** Plans from the rows of the newest `plan` of each model. */
export function plansOf(rows: readonly Row[]): Plan[] {
  const plans = new Map<string, Plan>();
  for (const row of rows) {
    const model = textOf(row, 'model') ?? '';
    const plan = plans.get(model) ?? {
      model,
      at: numberOf(row, 'at'),
      state: textOf(row, 'state') ?? '',
      trigger: textOf(row, 'trigger') ?? '',
      target: numberOf(row, 'target_load'),
      imbalance: numberOf(row, 'imbalance'),
      imbalanceBefore: numberOf(row, 'imbalance_before'),
      moved: numberOf(row, 'moved'),
      buckets: [],
    };
    plans.set(model, plan);
    plan.buckets.push({
      bucket: numberOf(row, 'bucket') ?? plan.buckets.length,
      from: numberOf(row, 'from_tokens') ?? 0,
      to: numberOf(row, 'to_tokens'),
      instances: Array.isArray(row['instances']) ? row['instances'].filter((one) => typeof one === 'number') : [],
      load: numberOf(row, 'load'),
    });
  }
  for (const plan of plans.values()) plan.buckets.sort((a, b) => a.bucket - b.bucket);
  return [...plans.values()].sort((a, b) => (a.model < b.model ? -1 : 1));
}

/** Lengths at which one bucket ends and the next begins, over all plans. */
export function cutsOf(plans: readonly Plan[]): number[] {
  const starts = plans.flatMap(({ buckets }) => buckets.map(({ from }) => from));
  return [...new Set(starts)].filter((start) => start > 0).sort((a, b) => a - b);
}

/** Work per instance of a bucket, or `null`. */
export function perInstance({ load, instances }: Bucket): Known {
  return load === null || instances.length === 0 ? null : load / instances.length;
}
