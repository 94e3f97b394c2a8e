// The SQL console: a statement, examples and saved queries to begin with, the answer as a table or a plot, and as a file.
//
// Invariant: one statement runs at a time; a new one, or Cancel, drops the one before. The statement that ran is in the
// address. Bound: ROWS_SHOWN rows are drawn, and the page says so when there are more; the files have them all.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ResultPlot } from '../components/result_plot';
import { ROWS_SHOWN, RowsTable } from '../components/rows_table';
import { SavedPicker } from '../components/saved_picker';
import { EXAMPLES } from '../examples';
import { count, durationText } from '../format';
import { fileOf, runSql, type FileKind, type Result } from '../sql';
import type { ViewProps } from './view';

type Outcome = { kind: 'none' } | { kind: 'result'; result: Result } | { kind: 'error'; message: string };

const ENDINGS: Record<FileKind, string> = { csv: 'csv', arrow: 'arrows' };

export function SqlView({ place, go }: ViewProps) {
  const [query, setQuery] = useState(place.query ?? EXAMPLES[0]?.query ?? '');
  const [shape, setShape] = useState<'table' | 'plot'>('table');
  const { outcome, busy, answers, during, cancel } = useOneAtATime();
  const blank = query.trim() === '';

  const run = (statement: string) =>
    during(async (signal) => ({ kind: 'result', result: await runSql(statement, signal) }));
  const ask = (statement: string) => {
    setQuery(statement);
    if (statement === place.query) void run(statement);
    else go({ query: statement });
  };
  const download = (kind: FileKind) =>
    during(async (signal) => {
      const stamp = new Date().toISOString().slice(0, 19).replaceAll(':', '');
      save(await fileOf(query, kind, signal), `evenkeel-${stamp}.${ENDINGS[kind]}`);
      return null;
    });
  // A statement in the address runs when it comes: by Run, by a link, or by the back button.
  useEffect(() => {
    if (place.query === undefined) return;
    setQuery(place.query);
    void run(place.query);
  }, [place.query]);

  return (
    <section class="panel sql" aria-labelledby="sql-heading">
      <div class="panel-head">
        <h2 id="sql-heading">SQL</h2>
        <div class="examples" role="group" aria-label="Example statements">
          {EXAMPLES.map((example) => (
            <button
              key={example.id}
              type="button"
              data-testid={`sql-example-${example.id}`}
              onClick={() => ask(example.query)}
            >
              {example.label}
            </button>
          ))}
        </div>
      </div>
      <SavedPicker choose={setQuery} />
      <label class="visually-hidden" for="sql-input">
        SQL statement; Ctrl+Enter runs it
      </label>
      <textarea
        id="sql-input"
        data-testid="sql-input"
        rows={7}
        spellcheck={false}
        autocapitalize="off"
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey) || blank) return;
          event.preventDefault();
          ask(query);
        }}
      />
      <div class="actions">
        <button type="button" class="primary" data-testid="sql-run" disabled={blank} onClick={() => ask(query)}>
          Run
        </button>
        <kbd>Ctrl+Enter</kbd>
        <span role="group" aria-label="Shape of the answer" class="choice">
          {(['table', 'plot'] as const).map((one) => (
            <button
              key={one}
              type="button"
              data-testid={`sql-${one}`}
              aria-pressed={shape === one}
              onClick={() => setShape(one)}
            >
              {one === 'table' ? 'Table' : 'Plot'}
            </button>
          ))}
        </span>
        <button type="button" data-testid="sql-csv" disabled={blank} onClick={() => void download('csv')}>
          Download CSV
        </button>
        <button type="button" data-testid="sql-arrow" disabled={blank} onClick={() => void download('arrow')}>
          Download Arrow
        </button>
        {busy && (
          <button type="button" data-testid="sql-cancel" onClick={cancel}>
            Cancel
          </button>
        )}
        <span class="muted" role="status" data-testid="sql-summary" data-answers={answers}>
          {busy ? 'running' : summary(outcome, shape)}
        </span>
      </div>
      {outcome.kind === 'error' && (
        <pre class="sql-error" role="alert" data-testid="sql-error">
          {outcome.message}
        </pre>
      )}
      {outcome.kind === 'result' && <Shown result={outcome.result} shape={shape} />}
    </section>
  );
}

function Shown({ result, shape }: { result: Result; shape: 'table' | 'plot' }) {
  if (result.rows.length === 0) {
    const names = result.columns.map(({ name }) => name).join(', ');
    return (
      <p class="empty" data-testid="sql-empty">
        The statement ran and gave no rows of {names}.
      </p>
    );
  }
  return shape === 'plot' ? (
    <ResultPlot result={result} />
  ) : (
    <RowsTable label="Result" testid="sql-result" columns={result.columns} rows={result.rows} />
  );
}

/** Runs one piece of work at a time and keeps how it came out. */
function useOneAtATime() {
  const [outcome, setOutcome] = useState<Outcome>({ kind: 'none' });
  const [busy, setBusy] = useState(false);
  const [answers, setAnswers] = useState(0);
  const running = useRef<AbortController | null>(null);
  async function during(work: (signal: AbortSignal) => Promise<Outcome | null>): Promise<void> {
    running.current?.abort();
    const mine = new AbortController();
    running.current = mine;
    setBusy(true);
    let next: Outcome | null;
    try {
      next = await work(mine.signal);
    } catch (error) {
      next = { kind: 'error', message: (error as Error).message };
    }
    if (running.current !== mine) return;
    running.current = null;
    setBusy(false);
    if (next !== null) setOutcome(next);
    setAnswers((number) => number + 1);
  }
  const cancel = () => {
    running.current?.abort();
    running.current = null;
    setBusy(false);
  };
  useEffect(() => () => running.current?.abort(), []);
  return { outcome, busy, answers, during, cancel };
}

function summary(outcome: Outcome, shape: 'table' | 'plot'): string {
  if (outcome.kind !== 'result') return outcome.kind === 'error' ? 'failed' : '';
  const { rows, tookMs } = outcome.result;
  const shown = shape === 'table' && rows.length > ROWS_SHOWN ? `, the first ${ROWS_SHOWN} shown` : '';
  return `${count(rows.length)} ${rows.length === 1 ? 'row' : 'rows'}${shown} in ${durationText(tookMs)}`;
}

function save(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
