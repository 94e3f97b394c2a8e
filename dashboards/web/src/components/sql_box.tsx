// The SQL box: a statement, examples, the result as a table, and the same result as CSV.
//
// Invariant: one statement runs at a time; a new one, or Cancel, drops the one before. Bound: ROWS_SHOWN rows are
// drawn, and the page says so when there are more; the CSV has them all.
import { useEffect, useRef, useState } from 'preact/hooks';
import { EXAMPLES, cellText, csvOf, runSql, type Column, type Result, type Row } from '../sql';
import { UNKNOWN, count, durationText } from '../format';

const ROWS_SHOWN = 500;

/** A statement that another part of the page wants run. A new object each time, so that asking twice runs twice. */
export interface Asked {
  query: string;
}

type Outcome = { kind: 'none' } | { kind: 'result'; result: Result } | { kind: 'error'; message: string };

export function SqlBox({ asked }: { asked: Asked | null }) {
  const [query, setQuery] = useState(EXAMPLES[0]?.query ?? '');
  const [outcome, setOutcome] = useState<Outcome>({ kind: 'none' });
  const [busy, setBusy] = useState(false);
  const [answers, setAnswers] = useState(0);
  const running = useRef<AbortController | null>(null);
  const input = useRef<HTMLTextAreaElement>(null);
  const blank = query.trim() === '';

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

  const run = (statement: string) =>
    during(async (signal) => ({ kind: 'result', result: await runSql(statement, signal) }));
  const download = () =>
    during(async (signal) => {
      save(await csvOf(query, signal), `evenkeel-${new Date().toISOString().slice(0, 19).replaceAll(':', '')}.csv`);
      return null;
    });
  const cancel = () => {
    running.current?.abort();
    running.current = null;
    setBusy(false);
  };
  const ask = (statement: string) => {
    setQuery(statement);
    void run(statement);
  };

  useEffect(() => {
    if (asked === null) return;
    ask(asked.query);
    input.current?.scrollIntoView({ block: 'center' });
    input.current?.focus({ preventScroll: true });
  }, [asked]);
  useEffect(() => () => running.current?.abort(), []);

  return (
    <section class="panel sql" aria-labelledby="sql-heading">
      <div class="panel-head">
        <h2 id="sql-heading" tabIndex={-1}>
          SQL
        </h2>
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
      <label class="visually-hidden" for="sql-input">
        SQL statement; Ctrl+Enter runs it
      </label>
      <textarea
        id="sql-input"
        data-testid="sql-input"
        ref={input}
        rows={7}
        spellcheck={false}
        autocapitalize="off"
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey) || blank) return;
          event.preventDefault();
          void run(query);
        }}
      />
      <div class="actions">
        <button type="button" class="primary" data-testid="sql-run" disabled={blank} onClick={() => void run(query)}>
          Run
        </button>
        <kbd>Ctrl+Enter</kbd>
        <button type="button" data-testid="sql-csv" disabled={blank} onClick={() => void download()}>
          Download CSV
        </button>
        {busy && (
          <button type="button" data-testid="sql-cancel" onClick={cancel}>
            Cancel
          </button>
        )}
        <span class="muted" role="status" data-testid="sql-summary" data-answers={answers}>
          {busy ? 'running' : summary(outcome)}
        </span>
      </div>
      {outcome.kind === 'error' && (
        <pre class="sql-error" role="alert" data-testid="sql-error">
          {outcome.message}
        </pre>
      )}
      {outcome.kind === 'result' && <ResultTable result={outcome.result} />}
    </section>
  );
}

function summary(outcome: Outcome): string {
  if (outcome.kind !== 'result') return outcome.kind === 'error' ? 'failed' : '';
  const { rows, tookMs } = outcome.result;
  const shown = rows.length > ROWS_SHOWN ? `, the first ${ROWS_SHOWN} shown` : '';
  return `${count(rows.length)} ${rows.length === 1 ? 'row' : 'rows'}${shown} in ${durationText(tookMs)}`;
}

function ResultTable({ result }: { result: Result }) {
  if (result.rows.length === 0) {
    return (
      <p class="empty" data-testid="sql-empty">
        The statement ran and gave no rows.
      </p>
    );
  }
  return (
    <div class="scroll tall" role="region" aria-label="Result" tabIndex={0}>
      <table data-testid="sql-result">
        <thead>
          <tr>
            {result.columns.map((column) => (
              <th key={column.name} scope="col" class={column.type} title={column.type}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {result.rows.slice(0, ROWS_SHOWN).map((row, index) => (
            <tr key={index}>
              {result.columns.map((column) => (
                <Cell key={column.name} column={column} row={row} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Cell({ column, row }: { column: Column; row: Row }) {
  const text = cellText(row[column.name]);
  if (text === null) {
    return (
      <td class={`${column.type} muted`} title="NULL">
        {UNKNOWN}
      </td>
    );
  }
  return (
    <td class={column.type} title={column.type === 'nested' || text.length > 60 ? text : undefined}>
      {text}
    </td>
  );
}

function save(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
