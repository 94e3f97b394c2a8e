// One request's life (SPEC X3): what it was, its phases in time, its decisions with every candidate and term, and its
// funnel.
import { useEffect, useState } from 'preact/hooks';
import { explained } from '../api';
import { Candidates } from '../components/candidates';
import { Panel, Told } from '../components/panel';
import { toneOfOutcome } from '../components/decisions';
import { Waterfall } from '../components/waterfall';
import { instanceName } from '../fleet';
import { clock, count, durationText, percent, spoken, timeOfDay } from '../format';
import { funnelOf } from '../funnel';
import { decisionsOf, lifeOf, timeOfId, type Decision, type Life, type Phase } from '../life';
import { instant, literal } from '../sql';
import { useRows } from '../use_rows';
import { OFTEN_MS, type ViewProps } from './view';

/** Rows of a request are looked for from a little before the time of its id, and so long after it. */
const BEFORE_MS = 10_000;
const LIFE_MAX_MS = 3_600_000;

/** The condition that spares reading the log outside of a request's life. */
function around(id: string): string {
  const at = timeOfId(id);
  if (at === null) return '';
  const from = id.startsWith('dec-') ? at - LIFE_MAX_MS : at - BEFORE_MS;
  const [first, last] = [from, at + LIFE_MAX_MS].map((ms) => new Date(ms).toISOString());
  return ` AND "at" >= TIMESTAMP '${first}' AND "at" <= TIMESTAMP '${last}'`;
}

/** The id searched for may be a decision's. */
const of = (id: string) =>
  id.startsWith('dec-')
    ? `request_id = (SELECT max(request_id) FROM decisions WHERE decision_id = ${literal(id)}${around(id)})${around(id)}`
    : `request_id = ${literal(id)}${around(id)}`;

export function RequestLife({ request, beat, fleet, tables }: ViewProps & { request: string }) {
  const events = useRows(`SELECT * FROM requests WHERE ${of(request)} ORDER BY seq LIMIT 5000`, beat, OFTEN_MS);
  const decided = useRows(`SELECT * FROM decisions WHERE ${of(request)} ORDER BY "at"`, beat, OFTEN_MS);
  const funnel = useRows(
    `SELECT layer, reason, sum(tokens) AS tokens, sum(predicted_seconds) AS seconds, 1 AS requests FROM funnel
WHERE ${of(request)} AND (layer = 'prompt' OR reason IS NOT NULL) GROUP BY layer, reason`,
    beat,
    OFTEN_MS,
  );
  const life = lifeOf(events.result?.rows ?? []);
  const nameOf = (id: number | null) => instanceName(fleet, id);
  const decisions = decisionsOf(decided.result?.rows ?? []);
  return (
    <>
      <Told answer={events} empty={`No request ${request} is in the tables; old ones leave the log (log.retain_age).`}>
        {() => life !== null && <Summary life={life} decision={decisions.at(-1) ?? null} nameOf={nameOf} />}
      </Told>
      {life !== null && tables?.has(EXPLAINED_SINCE) === true && <InWords life={life} />}
      <Panel id="decisions" title="Decisions" note="every candidate with the terms of its cost, the least cost first">
        <Told answer={decided} empty="no decision on this request is in the tables">
          {() =>
            decisions.map((decision) => <DecisionPart key={decision.id + decision.at} {...{ decision, nameOf }} />)
          }
        </Told>
      </Panel>
      {(funnel.result?.rows.length ?? 0) > 0 ? (
        <Waterfall after={funnelOf(funnel.result?.rows ?? [])} before={null} picked={null} />
      ) : (
        <Panel id="waterfall" title="From prompt to reuse">
          <Told answer={funnel} empty="Its funnel comes when it has ended.">
            {() => null}
          </Told>
        </Panel>
      )}
    </>
  );
}

/** Servers that have this table have the route that explains, too. */
const EXPLAINED_SINCE = 'shadow_decisions';

/** The server's own explanation, asked for again when the request has come further. */
function InWords({ life }: { life: Life }) {
  const [lines, setLines] = useState<string[]>([]);
  const stage = `${life.request} ${life.phases.length} ${life.end}`;
  useEffect(() => {
    const asking = new AbortController();
    explained(life.request, asking.signal).then(setLines, () => setLines([]));
    return () => asking.abort();
  }, [stage]);
  if (lines.length === 0) return null;
  return (
    <Panel id="words" title="In words">
      <ol class="lines" data-testid="in-words">
        {lines.map((line, index) => {
          const [at = '', ...words] = line.split(' ');
          return (
            <li key={index}>
              <time dateTime={at}>{timeOfDay(at)}</time> {words.join(' ')}
            </li>
          );
        })}
      </ol>
    </Panel>
  );
}

const PHASES: Record<Phase['id'], { title: string; colour: string }> = {
  decide: { title: 'deciding', colour: '--muted' },
  queue: { title: 'in the queue', colour: '--warn' },
  first: { title: 'up to the first token', colour: '--series-1' },
  generate: { title: 'generating', colour: '--series-2' },
};

type NameOf = (id: number | null) => string;

function Summary({ life, decision, nameOf }: { life: Life; decision: Decision | null; nameOf: NameOf }) {
  const hit = life.promptTokens === null || life.cachedTokens === null ? null : life.cachedTokens / life.promptTokens;
  const facts: [string, string][] = [
    ['Came', timeOfDay(instant(life.arrived))],
    ['Model', life.model],
    ['Tier', life.tier],
    ['Tenant', life.tenant],
    ['Prompt', `${count(life.promptTokens)} tokens`],
    ['Reused', `${count(life.cachedTokens)} tokens, ${percent(hit)}`],
    ['Predicted to reuse', `${count(decision?.predictedHitTokens ?? null)} tokens`],
    ['First token', durationText(life.ttft)],
    ['Predicted', durationText(decision?.predictedTtft ?? null)],
    ['Output', `${count(life.outputTokens)} tokens`],
    ['Total', durationText(life.total)],
    ['End', life.end ?? 'still running'],
  ];
  return (
    <Panel id="life" title="One request's life" note={<code data-testid="life-request">{life.request}</code>}>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {life.error !== null && <p class="sql-error">{life.error}</p>}
      <Phases life={life} nameOf={nameOf} />
    </Panel>
  );
}

/** Marks of tokens drawn at most; of more, evenly chosen ones. */
const TICKS_MAX = 400;

function Phases({ life, nameOf }: { life: Life; nameOf: NameOf }) {
  const end = Math.max(life.total ?? 0, ...life.phases.map(({ to }) => to), 0.001);
  const every = Math.ceil(life.tokens.length / TICKS_MAX);
  return (
    <table class="timeline" data-testid="phases">
      <tbody>
        {life.phases.map((phase, index) => (
          <tr key={index}>
            <th scope="row">
              {PHASES[phase.id].title}
              {phase.instance === null ? '' : ` on ${nameOf(phase.instance)}`}
            </th>
            <td>
              <span class="track">
                <i
                  style={{
                    left: `${(phase.from / end) * 100}%`,
                    width: `${Math.max(0.2, ((phase.to - phase.from) / end) * 100)}%`,
                    background: `var(${PHASES[phase.id].colour})`,
                  }}
                />
                {phase.id === 'generate' &&
                  life.tokens
                    .filter((at, tick) => tick % every === 0 && at >= phase.from && at <= phase.to)
                    .map((at) => <b key={at} style={{ left: `${(at / end) * 100}%` }} />)}
              </span>
            </td>
            <td class="number">{durationText(phase.to - phase.from)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function DecisionPart({ decision, nameOf }: { decision: Decision; nameOf: NameOf }) {
  return (
    <div class="decision" data-testid="decision">
      <p>
        {clock(decision.at / 1000)}{' '}
        <span class="badge" data-tone={toneOfOutcome(decision.outcome)}>
          {decision.outcome}
        </span>{' '}
        {decision.reason}
      </p>
      <p class="muted">
        {decision.tier}: {decision.tierReason}. Throttle step {spoken(decision.throttleStep)}, saturation{' '}
        {percent(decision.saturation)}. Policy {spoken(decision.policy)} on views {spoken(decision.viewMode)},{' '}
        {durationText(decision.viewAge)} old. <code>{decision.id}</code>
      </p>
      <Candidates candidates={decision.candidates} nameOf={nameOf} />
    </div>
  );
}
