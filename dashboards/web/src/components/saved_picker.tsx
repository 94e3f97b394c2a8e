// A list of the saved queries; choosing one puts its statement into the editor. Nothing runs until Run.
import { useEffect, useState } from 'preact/hooks';
import { bySubject, savedQueries, type Saved } from '../saved';

export function SavedPicker({ choose }: { choose: (statement: string) => void }) {
  const [queries, setQueries] = useState<readonly Saved[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const asking = new AbortController();
    savedQueries(asking.signal).then(setQueries, (error: unknown) => {
      if (!asking.signal.aborted) setProblem((error as Error).message);
    });
    return () => asking.abort();
  }, []);
  if (problem !== null) {
    return (
      <p class="muted" role="status" data-testid="sql-saved-problem">
        Saved queries: {problem}
      </p>
    );
  }
  return (
    <label class="saved">
      Saved queries{' '}
      <select
        data-testid="sql-saved"
        disabled={queries.length === 0}
        value=""
        onChange={(event) => {
          const chosen = queries.find(({ name }) => name === event.currentTarget.value);
          if (chosen !== undefined) choose(chosen.statement);
          // The same one may be chosen again.
          event.currentTarget.value = '';
        }}
      >
        <option value="">{queries.length === 0 ? 'loading' : `choose one of ${queries.length}`}</option>
        {bySubject(queries).map(([subject, group]) => (
          <optgroup key={subject} label={subject}>
            {group.map(({ name, question, units }) => (
              <option key={name} value={name} title={units}>
                {question}
              </option>
            ))}
          </optgroup>
        ))}
      </select>
    </label>
  );
}
