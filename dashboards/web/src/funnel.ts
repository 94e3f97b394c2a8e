// The hit-rate funnel (SPEC C5): windows of it, where the hit rate fell, and which reasons made it fall. Pure.
//
// Invariant, from the table: a layer is the next one plus the losses of the next one (gains are negative). So layers
// follow from the prompt and the losses, and a fall of the hit rate is, in points, exactly the sum of the losses'
// growth.
import { numberOf, textOf, type Row } from './sql';
import type { Known } from './fleet';

/** Layers in order, the prompt first; `next` of each is what reached the one after. */
export const LAYERS = [
  { id: 'prompt', title: 'Prompt tokens', means: 'all tokens of the prompts' },
  { id: 'potential', title: 'Seen before', means: 'what a cache without a bound would reuse' },
  { id: 'present', title: 'Held', means: 'in the longest prefix that one instance still held' },
  { id: 'visible', title: 'Known to routing', means: 'of it, what the view of the caches knew' },
  { id: 'eligible', title: 'On allowed instances', means: 'of it, on instances that were ready and allowed' },
  { id: 'selected', title: 'On the chosen instance', means: 'of it, on the instance that was chosen' },
  { id: 'delivered', title: 'Reused', means: 'what the engine reused: the hit rate' },
] as const;

export interface Loss {
  tokens: number;
  /** Predicted time to compute them; `null` where no prefill rate was known. */
  seconds: Known;
}

/** The funnel of some requests. */
export interface Funnel {
  requests: number;
  prompt: number;
  /** By `layer.reason`, as `lossId` writes it. */
  losses: ReadonlyMap<string, Loss>;
}

/** The funnel of one step of time. `at` is its start, milliseconds since the epoch. */
export interface Window extends Funnel {
  at: number;
}

export const EMPTY: Funnel = { requests: 0, prompt: 0, losses: new Map() };

export const lossId = (layer: string, reason: string) => `${layer}.${reason}`;
export const layerOf = (loss: string) => loss.split('.')[0] ?? '';
export const reasonOf = (loss: string) => loss.split('.')[1] ?? '';

/** Windows from rows of `since, layer, reason, tokens, seconds, requests`, in order of time. */
export function windowsOf(rows: readonly Row[]): Window[] {
  const windows = new Map<number, Window & { losses: Map<string, Loss> }>();
  for (const row of rows) {
    const at = numberOf(row, 'since');
    if (at === null) continue;
    const window = windows.get(at) ?? { at, requests: 0, prompt: 0, losses: new Map() };
    windows.set(at, window);
    addRow(window, row);
  }
  return [...windows.values()].sort((a, b) => a.at - b.at);
}

/** Windows with an empty one in each hole, so that a line breaks there. A hole is longer than three of the least steps. */
export function broken(windows: readonly Window[]): Window[] {
  const steps = windows.slice(1).map((window, index) => window.at - (windows[index]?.at ?? 0));
  const hole = 3 * Math.min(...steps);
  return windows.flatMap((window, index) => {
    const step = index === 0 ? 0 : (steps[index - 1] ?? 0);
    return step > hole ? [{ ...EMPTY, at: window.at - step / 2 }, window] : [window];
  });
}

/** One funnel from rows of `layer, reason, tokens, seconds, requests`. */
export function funnelOf(rows: readonly Row[]): Funnel {
  const funnel = { requests: 0, prompt: 0, losses: new Map<string, Loss>() };
  rows.forEach((row) => addRow(funnel, row));
  return funnel;
}

function addRow(funnel: Funnel & { losses: Map<string, Loss> }, row: Row): void {
  const [layer, reason] = [textOf(row, 'layer') ?? '', textOf(row, 'reason')];
  const tokens = numberOf(row, 'tokens') ?? 0;
  if (reason !== null) {
    addLoss(funnel.losses, lossId(layer, reason), { tokens, seconds: numberOf(row, 'seconds') });
  } else if (layer === 'prompt') {
    funnel.prompt += tokens;
    funnel.requests += numberOf(row, 'requests') ?? 0;
  }
}

function addLoss(losses: Map<string, Loss>, id: string, { tokens, seconds }: Loss): void {
  const old = losses.get(id);
  const sum = old?.seconds == null ? seconds : old.seconds + (seconds ?? 0);
  losses.set(id, { tokens: (old?.tokens ?? 0) + tokens, seconds: sum });
}

export function sum(funnels: readonly Funnel[]): Funnel {
  const losses = new Map<string, Loss>();
  for (const funnel of funnels) funnel.losses.forEach((loss, id) => addLoss(losses, id, loss));
  return {
    requests: funnels.reduce((all, { requests }) => all + requests, 0),
    prompt: funnels.reduce((all, { prompt }) => all + prompt, 0),
    losses,
  };
}

/** Tokens that reached a layer. */
export function reached(funnel: Funnel, layer: string): number {
  let tokens = funnel.prompt;
  for (const { id } of LAYERS) {
    funnel.losses.forEach((loss, name) => {
      if (layerOf(name) === id) tokens -= loss.tokens;
    });
    if (id === layer) break;
  }
  return tokens;
}

/** Share of the prompt tokens, or `null` where there were none. */
export function share(funnel: Funnel, tokens: number): Known {
  return funnel.prompt > 0 ? tokens / funnel.prompt : null;
}

export function hitRate(funnel: Funnel): Known {
  return share(funnel, reached(funnel, 'delivered'));
}

/** A fall smaller than this is no fall. */
const FALL_MIN = 0.02;

/**
 * When the hit rate fell: the time that best parts a higher rate before from a lower one after, or `null`. It is where
 * the summed deviation from the mean rate peaks (CUSUM).
 */
export function fallOf(windows: readonly Window[]): number | null {
  const rate = hitRate(sum(windows));
  if (rate === null) return null;
  let [deviation, most, at] = [0, 0, -1];
  windows.forEach((window, index) => {
    deviation += reached(window, 'delivered') - rate * window.prompt;
    if (deviation > most) [most, at] = [deviation, index];
  });
  const first = windows[at + 1];
  if (at < 0 || first === undefined) return null;
  const { before, after } = parted(windows, first.at);
  const [was, is] = [hitRate(before), hitRate(after)];
  return was !== null && is !== null && was - is >= FALL_MIN ? first.at : null;
}

export function parted(windows: readonly Window[], at: number): { before: Funnel; after: Funnel } {
  return {
    before: sum(windows.filter((window) => window.at < at)),
    after: sum(windows.filter((window) => window.at >= at)),
  };
}

/** One line of the waterfall. */
export interface Step {
  kind: 'layer' | 'loss';
  /** Id of the layer or of the loss. */
  id: string;
  tokens: number;
  /** Share of the prompt tokens after, and before where there is a before. */
  share: Known;
  shareBefore: Known;
  /** Where the bar starts and ends, as shares of the prompt. */
  from: number;
  to: number;
  seconds: Known;
}

/** The waterfall: each layer, below it what was lost on the way to the next. */
export function waterfall(after: Funnel, before: Funnel = EMPTY): Step[] {
  const names = new Set([...after.losses.keys(), ...before.losses.keys()]);
  const steps: Step[] = [];
  const scale = after.prompt > 0 ? after.prompt : 1;
  let tokens = after.prompt;
  for (const { id: layer } of LAYERS) {
    for (const id of [...names].filter((name) => layerOf(name) === layer)) {
      const loss = after.losses.get(id) ?? { tokens: 0, seconds: null };
      const left = tokens - loss.tokens;
      steps.push({
        kind: 'loss',
        id,
        tokens: loss.tokens,
        seconds: loss.seconds,
        share: share(after, loss.tokens),
        shareBefore: share(before, before.losses.get(id)?.tokens ?? 0),
        from: Math.min(left, tokens) / scale,
        to: Math.max(left, tokens) / scale,
      });
      tokens = left;
    }
    steps.push({
      kind: 'layer',
      id: layer,
      tokens,
      seconds: null,
      share: share(after, tokens),
      shareBefore: share(before, reached(before, layer)),
      from: 0,
      to: tokens / scale,
    });
  }
  return steps;
}

/** Losses by how many points of the hit rate they cost more than before, the most first. */
export function causes(after: Funnel, before: Funnel): { id: string; points: number }[] {
  return waterfall(after, before)
    .filter(({ kind }) => kind === 'loss')
    .map(({ id, share: is, shareBefore: was }) => ({ id, points: (is ?? 0) - (was ?? 0) }))
    .sort((a, b) => b.points - a.points);
}
