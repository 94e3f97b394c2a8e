// The last decisions, newest first. A request's id leads to its life (SPEC X3).
import { count, durationText, timeOfDay } from '../format';
import type { Decision, Known } from '../fleet';

interface Props {
  decisions: readonly Decision[] | null;
  /** An instance's name by its number. */
  nameOf: (instance: Known) => string;
  addressOfRequest: (request: string) => string;
}

export function Decisions({ decisions, nameOf, addressOfRequest }: Props) {
  return (
    <section class="panel" aria-labelledby="decisions-title">
      <div class="panel-head">
        <h2 id="decisions-title">Last decisions</h2>
        <p class="legend">an id shows the request's life</p>
      </div>
      {decisions === null || decisions.length === 0 ? (
        <p class="empty" data-testid="decisions-empty">
          {decisions === null ? 'no data yet' : 'no request has been decided on yet'}
        </p>
      ) : (
        <div class="scroll tall" role="region" aria-labelledby="decisions-title" tabIndex={0}>
          <table data-testid="decisions-table">
            <thead>
              <tr>
                <th scope="col">Time</th>
                <th scope="col">Request</th>
                <th scope="col">Tier</th>
                <th scope="col">Outcome</th>
                <th scope="col">Instance</th>
                <th scope="col" class="number">
                  Hit tokens
                </th>
                <th scope="col" class="number">
                  Predicted TTFT
                </th>
                <th scope="col">Reason</th>
              </tr>
            </thead>
            <tbody>
              {decisions.map((decision) => (
                <tr key={`${decision.at} ${decision.request} ${decision.outcome}`} data-testid="decision-row">
                  <td title={decision.at}>{timeOfDay(decision.at)}</td>
                  <td>
                    <a class="id" href={addressOfRequest(decision.request)}>
                      {decision.request}
                    </a>
                  </td>
                  <td>{decision.tier}</td>
                  <td>
                    <span class="badge" data-tone={toneOfOutcome(decision.outcome)}>
                      {decision.outcome}
                    </span>
                  </td>
                  <td>{nameOf(decision.instance)}</td>
                  <td class="number">{count(decision.predictedHitTokens)}</td>
                  <td class="number">
                    {durationText(decision.predictedSeconds === null ? null : decision.predictedSeconds * 1000)}
                  </td>
                  <td class="reason">{decision.reason}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

export function toneOfOutcome(outcome: string): string {
  if (outcome === 'admit') return 'good';
  return outcome === 'reject' ? 'bad' : 'warn';
}
