// The page's heading: whether its numbers are live and how old they are, what is wrong if something is, and the pause
// button.
//
// Only the state's word is a live region; the age beside it changes twice a second and would never let a screen reader
// rest.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { age, spoken } from '../format';
import type { Live, Liveness } from '../live';

interface Props {
  live: Live;
  liveness: Liveness;
  now: number;
  models: readonly string[];
  paused: boolean;
  onPause: () => void;
  onKey: (key: string) => void;
  children: ComponentChildren;
}

const WORDS: Record<Liveness['state'], string> = {
  connecting: 'Connecting',
  live: 'Live',
  stale: 'Stale',
  reconnecting: 'Reconnecting',
};

export function Heading(props: Props) {
  const { live, liveness, paused } = props;
  const viewMode = live.fleet?.viewMode ?? null;
  return (
    <header>
      <div class="heading">
        <h1>Evenkeel</h1>
        <span class="models" data-testid="models">
          {props.models.join(', ')}
        </span>
        <span class="state" data-state={liveness.state}>
          <span role="status" aria-live="polite" data-testid="state">
            {WORDS[liveness.state]}
            {paused ? ', paused' : ''}
          </span>
          {liveness.ageMs !== null && (
            <span class="age" title={live.fleet === null ? '' : `as of ${new Date(live.fleet.asOfMs).toISOString()}`}>
              as of <span data-testid="as-of-age">{age(liveness.ageMs)}</span> ago
            </span>
          )}
        </span>
        {viewMode !== null && (
          <span class="badge" data-tone={viewMode === 'exact' ? 'good' : 'warn'} title="What routing decides on">
            views <span data-testid="view-mode">{spoken(viewMode)}</span>
          </span>
        )}
        <button type="button" data-testid="pause" aria-pressed={paused} onClick={props.onPause}>
          {paused ? 'Resume' : 'Pause'}
        </button>
      </div>
      <Problem {...props} />
      {live.keyNeeded && <KeyForm onKey={props.onKey} />}
      {props.children}
    </header>
  );
}

function Problem({ live, liveness, now }: Props) {
  let text = live.problem;
  if (text !== null && live.retryAtMs !== null) {
    const seconds = Math.max(0, Math.ceil((live.retryAtMs - now) / 1000));
    text += seconds > 0 ? ` Next attempt in ${seconds} s.` : ' Trying again now.';
  } else if (text === null && liveness.state === 'stale') {
    text = 'The server sends no newer numbers. What is below was true at the time above.';
  }
  return text === null ? null : (
    <p class="problem" data-testid="problem">
      {text}
    </p>
  );
}

function KeyForm({ onKey }: { onKey: (key: string) => void }) {
  const [key, setKey] = useState('');
  return (
    <form
      class="key"
      onSubmit={(event) => {
        event.preventDefault();
        onKey(key);
      }}
    >
      <label for="api-key">API key</label>
      <input
        id="api-key"
        type="password"
        autocomplete="off"
        value={key}
        onInput={(event) => setKey(event.currentTarget.value)}
      />
      <button type="submit" disabled={key === ''}>
        Use key
      </button>
      <span class="muted">kept in this tab only</span>
    </form>
  );
}
