// A statement kept answered: asked when it changes, and again as the live stream moves on.
//
// Invariants: one question at a time; an answer belongs to the statement shown; the last good answer stays while a newer
// one is on its way or failed. Nothing is asked again while the page is paused or out of sight, or the stream stands
// still: then nothing new is known, or nobody looks.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ServerError } from './api';
import { runSql, type Result } from './sql';

export interface Answer {
  /** `null` until the first answer. */
  result: Result | null;
  /** Why the newest question failed. */
  problem: string | null;
}

/** A question that failed is asked again after this time, however seldom its answer changes. */
const RETRY_MS = 5000;

const NOTHING: Answer = { result: null, problem: null };

interface Asked {
  statement: string | null;
  beat: number;
  asking: AbortController | null;
  failed: boolean;
}

const NEVER: Asked = { statement: null, beat: 0, asking: null, failed: false };

/** `beat` is the time of the newest live event; `everyMs` the least time between two questions. `null` asks nothing. */
export function useRows(statement: string | null, beat: number | null, everyMs: number): Answer {
  const [answer, setAnswer] = useState<Answer & { statement: string | null }>({ ...NOTHING, statement: null });
  const asked = useRef<Asked>(NEVER);

  useEffect(() => {
    const last = asked.current;
    const isSame = last.statement === statement;
    const pause = last.failed ? Math.min(RETRY_MS, everyMs) : everyMs;
    const isSoon = beat === null || beat - last.beat < pause;
    if (isSame && (last.asking !== null || isSoon || document.hidden)) return;
    last.asking?.abort();
    if (statement === null) {
      asked.current = NEVER;
      return;
    }
    const asking = new AbortController();
    asked.current = { statement, beat: beat ?? 0, asking, failed: false };
    const tell = (part: Partial<Answer>) => {
      if (asking.signal.aborted) return;
      asked.current = { ...asked.current, asking: null, failed: part.problem !== null };
      setAnswer((old) => ({ ...(old.statement === statement ? old : NOTHING), statement, ...part }));
    };
    runSql(statement, asking.signal).then(
      (result) => tell({ result, problem: null }),
      (error: unknown) => tell({ problem: problemOf(error) }),
    );
  }, [statement, beat, everyMs]);
  useEffect(() => () => asked.current.asking?.abort(), []);

  return answer.statement === statement ? answer : NOTHING;
}

function problemOf(error: unknown): string {
  if (error instanceof ServerError && error.status === 429) return 'The server is busy with other queries.';
  return (error as Error).message;
}
