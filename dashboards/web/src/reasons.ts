// What each reason of the funnel means and what to look at next, in words (SPEC C5). The reasons are those of
// operators/src/funnel/layers.rs; one that is not here is shown by its name.
import { reasonOf } from './funnel';
import { spoken } from './format';

export interface Reason {
  title: string;
  means: string;
  look: string;
}

const REASONS: Record<string, Reason> = {
  'potential.never_seen': {
    title: 'never seen',
    means: 'Nobody asked for this text before.',
    look: 'The traffic is new, not the cache worse: see which tenant sends it. No cache would help.',
  },
  'present.evicted': {
    title: 'evicted',
    means: 'An instance stored it and has dropped it, or a block before it, since.',
    look: 'More different text is in use than the caches hold. Capacity says what more blocks would buy; workers.kv_bytes_max and workers.count set them.',
  },
  'present.split': {
    title: 'split',
    means: 'It is held, but by several instances of which none has all of it.',
    look: 'One conversation was served by several instances: look at traded for load, and at instances that came or went.',
  },
  'present.not_stored': {
    title: 'not stored',
    means: 'It was asked for before and never stored: it was still being computed, or gone at once.',
    look: 'The same text was asked for many times at once, or the prefix cache is off (workers.prefix_cache).',
  },
  'visible.stale_view': {
    title: 'stale view',
    means: 'It was held, but the view of the caches did not know, or was too old to be believed.',
    look: 'Compare dataflow.epoch with the gap between requests; the table cache_view says when an instance lost trust.',
  },
  'visible.phantom': {
    title: 'phantom (gain)',
    means: 'The view claimed blocks that were gone.',
    look: 'The table cache_view has the audits of the instances.',
  },
  'eligible.ineligible': {
    title: 'ineligible',
    means: 'Only instances that were not ready or not allowed held it.',
    look: 'Scaling shows which instances were starting, draining or dead.',
  },
  'eligible.contradiction': {
    title: 'contradiction (gain)',
    means: 'Rows contradict each other.',
    look: 'The tables refused_rows and faults may say why.',
  },
  'selected.traded_for_load': {
    title: 'traded for load',
    means: 'An instance held it, and another was chosen since it was less busy.',
    look: 'The load map shows whether one instance carries too much; a request below shows the terms that were weighed.',
  },
  'selected.not_served': {
    title: 'not served',
    means: 'The request was refused or left before it was placed.',
    look: 'Requests with outcome reject; the throttle step on Fleet.',
  },
  'selected.contradiction': {
    title: 'contradiction (gain)',
    means: 'Rows contradict each other.',
    look: 'The tables refused_rows and faults may say why.',
  },
  'delivered.stale_view': {
    title: 'stale claim',
    means: 'The instance chosen was believed to hold it and had dropped it already.',
    look: 'The view lags behind evictions: dataflow.epoch, and the table cache_view.',
  },
  'delivered.transfer_too_slow': {
    title: 'transfer too slow',
    means: 'The instance held it below L1 and computed it anew, since fetching would have taken longer.',
    look: 'The level of the held tokens below; workers.l2_bytes.',
  },
  'delivered.engine_eviction': {
    title: 'evicted while waiting',
    means: 'The instance held it when it was decided, and no more when the request ran.',
    look: 'The cache turns over faster than requests wait: Capacity, and waiting requests on Fleet.',
  },
  'delivered.unreported': {
    title: 'unreported',
    means: 'The request ended without saying what was reused.',
    look: 'Requests that failed or were cancelled.',
  },
  'delivered.unseen_hit': {
    title: 'unseen hit (gain)',
    means: 'More was reused than routing knew of, such as a part of a block.',
    look: 'No harm. Much of it means that routing could do better with fresher views.',
  },
};

export function reasonWords(loss: string): Reason {
  return REASONS[loss] ?? { title: spoken(reasonOf(loss)), means: '', look: '' };
}
