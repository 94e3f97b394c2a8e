// Region and instance against cache (SPEC C3, C5): how far prompt tokens got, at which KV level they were held, and how
// full the caches are.
import { useMemo } from 'preact/hooks';
import { cacheLinesOf, levelsOf, type CacheLine } from '../cache_map';
import { HeatCell } from '../components/bars';
import { Heads, Panel, Scroll, Told } from '../components/panel';
import type { Instance, Known } from '../fleet';
import { count, percent } from '../format';
import { LAYERS, reached, share } from '../funnel';
import { addressOf, inGroup, inRange, inView, paceMs, type Place } from '../place';
import { useRows } from '../use_rows';
import { SELDOM_MS, type ViewProps } from './view';

function caches(place: Place): string {
  return `SELECT region, instance, layer, level, reason, sum(tokens) AS tokens,
       CASE WHEN layer = 'prompt' THEN count(DISTINCT request_id) END AS requests
FROM funnel
WHERE (layer = 'prompt' OR reason IS NOT NULL OR level IS NOT NULL) AND ${inRange(place, 'at')}${inGroup(place)}
GROUP BY region, instance, layer, level, reason`;
}

const REACHED = LAYERS.slice(1);

export function CacheMap({ place, beat, fleet }: ViewProps) {
  const answer = useRows(caches(place), beat, paceMs(place, SELDOM_MS));
  const lines = useMemo(() => cacheLinesOf(answer.result?.rows ?? []), [answer.result]);
  const levels = levelsOf(lines);
  const names = [
    'Region, instance',
    ...REACHED.map(({ title }) => `${title}|number`),
    ...levels.map((level) => `held in ${level}|number`),
    'Requests|number',
    'Blocks in use|number',
    'Blocks kept|number',
  ];
  return (
    <Panel
      id="cache-map"
      title="Caches by region and instance"
      unit="share of prompt tokens that got so far"
      note={<a href={addressOf(inView(place, 'cache'))}>why tokens are lost</a>}
    >
      <Told answer={answer} empty="no request was closed in this time range">
        {() => (
          <Scroll label="Caches by region and instance">
            <table class="map" data-testid="cache-map">
              <Heads names={names} />
              <tbody>
                {lines.map((line) => (
                  <LineRow
                    key={`${line.region} ${line.instance}`}
                    line={line}
                    levels={levels}
                    instance={fleet?.instances.find(({ instance }) => instance === line.instance) ?? null}
                  />
                ))}
              </tbody>
            </table>
          </Scroll>
        )}
      </Told>
    </Panel>
  );
}

interface RowProps {
  line: CacheLine;
  levels: readonly string[];
  /** What the stream knows of the line's instance. */
  instance: Instance | null;
}

function LineRow({ line, levels, instance }: RowProps) {
  const { funnel } = line;
  const isRegion = line.instance === null;
  const name = isRegion ? line.region : (instance?.name ?? `#${line.instance}`);
  const cell = (id: string, tokens: number, words: string) => (
    <HeatCell key={id} share={share(funnel, tokens)} title={`${name}: ${percent(share(funnel, tokens))} ${words}`}>
      {percent(share(funnel, tokens))}
    </HeatCell>
  );
  const full = (blocks: Known | undefined) => {
    const total = instance?.blocksTotal ?? 0;
    return isRegion ? '' : percent(blocks == null || total === 0 ? null : blocks / total);
  };
  return (
    <tr class={isRegion ? 'layer' : 'loss'}>
      <th scope="row">{name}</th>
      {REACHED.map(({ id, means }) => cell(id, reached(funnel, id), means))}
      {levels.map((level) => cell(level, line.levels.get(level) ?? 0, `held in ${level}`))}
      <td class="number">{count(funnel.requests)}</td>
      <td class="number">{full(instance?.blocksUsed)}</td>
      <td class="number">{full(instance?.blocksCached)}</td>
    </tr>
  );
}
