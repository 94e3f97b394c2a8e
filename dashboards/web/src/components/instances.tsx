// One row per instance: its state, its work, its KV blocks and its share of the fleet's context tokens.
import { count, durationText, percent, rate } from '../format';
import type { Instance, Known } from '../fleet';
import { Meter } from './bars';

export function Instances({ instances }: { instances: readonly Instance[] | null }) {
  return (
    <section class="panel" aria-labelledby="instances-title">
      <div class="panel-head">
        <h2 id="instances-title">Instances</h2>
        <p class="legend">
          <span>
            <i class="swatch" style={{ background: 'var(--series-1)' }} /> blocks in use
          </span>
          <span>
            <i class="swatch" style={{ background: 'var(--series-2)' }} /> kept for reuse
          </span>
        </p>
      </div>
      {instances === null || instances.length === 0 ? (
        <p class="empty" data-testid="instances-empty">
          {instances === null ? 'no data yet' : 'no instance has reported'}
        </p>
      ) : (
        <div class="scroll" role="region" aria-labelledby="instances-title" tabIndex={0}>
          <table data-testid="instances-table">
            <thead>
              <tr>
                <th scope="col">Instance</th>
                <th scope="col" class="wide-only">
                  Model
                </th>
                <th scope="col">State</th>
                <th scope="col">Share of context</th>
                <th scope="col" class="number">
                  Running
                </th>
                <th scope="col" class="number">
                  Waiting
                </th>
                <th scope="col" class="number">
                  Tokens/s
                </th>
                <th scope="col" class="number">
                  Context tokens
                </th>
                <th scope="col">KV blocks</th>
                <th scope="col" class="number wide-only">
                  Prefill queue
                </th>
              </tr>
            </thead>
            <tbody>
              {instances.map((instance) => (
                <InstanceRow key={instance.instance} instance={instance} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function InstanceRow({ instance }: { instance: Instance }) {
  const { loadSeconds, share } = instance;
  return (
    <tr data-testid={`instance-${instance.instance}`} data-state={instance.state}>
      <th scope="row">{instance.name}</th>
      <td class="wide-only">{instance.model}</td>
      <td>
        <span class="badge" data-tone={toneOf(instance.state)}>
          {instance.state}
        </span>
      </td>
      <td>
        <span class="measured">
          <Meter parts={[{ share, colour: '--series-1' }]} />
          <span class="number" data-testid={`instance-${instance.instance}-share`}>
            {percent(share)}
          </span>
        </span>
      </td>
      <td class="number">{count(instance.running)}</td>
      <td class="number">{count(instance.waiting)}</td>
      <td class="number" data-testid={`instance-${instance.instance}-tokens-per-second`}>
        {rate(instance.tokensPerSecond)}
      </td>
      <td class="number">{count(instance.contextTokens)}</td>
      <td>
        <Blocks instance={instance} />
      </td>
      <td class="number wide-only">{durationText(loadSeconds === null ? null : loadSeconds * 1000)}</td>
    </tr>
  );
}

function Blocks({ instance }: { instance: Instance }) {
  const { blocksUsed, blocksCached, blocksTotal } = instance;
  const shareOf = (blocks: Known) =>
    blocks === null || blocksTotal === null || blocksTotal === 0 ? null : blocks / blocksTotal;
  const title = `${count(blocksUsed)} in use, ${count(blocksCached)} kept for reuse, ${count(blocksTotal)} in all`;
  return (
    <span class="measured blocks" title={title}>
      <Meter
        parts={[
          { share: shareOf(blocksUsed), colour: '--series-1' },
          { share: shareOf(blocksCached), colour: '--series-2' },
        ]}
      />
      <span class="number">
        {count(blocksUsed)} + {count(blocksCached)} <span class="unit">of {count(blocksTotal)}</span>
      </span>
    </span>
  );
}

function toneOf(state: string): string {
  if (state === 'ready') return 'good';
  return state === 'dead' ? 'bad' : 'warn';
}
