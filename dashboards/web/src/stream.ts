// Keeps GET /v1/live open for as long as the page lives, and says what happens to it as LiveEvents.
//
// Invariant: at most one connection at a time. A stream that is silent for SILENCE_MS counts as broken (a dead peer
// sends no FIN).
import { call, ServerError } from './api';
import { clockSkewMs, retryDelayMs, type LiveEvent } from './live';
import { EventStreamReader } from './sse';

export const SILENCE_MS = 10_000;

export interface Connection {
  close(): void;
  /** Ends a pause between attempts now. */
  retryNow(): void;
}

export function connect(tell: (event: LiveEvent) => void): Connection {
  const life = new AbortController();
  let wake: () => void = () => {};

  async function keepOpen(): Promise<void> {
    let attempt = 0;
    while (!life.signal.aborted) {
      try {
        await readOnce(life.signal, (event) => {
          if (event.type === 'event') attempt = 0;
          tell(event);
        });
      } catch (error) {
        if (life.signal.aborted) return;
        const pauseMs = retryDelayMs(attempt++);
        const status = error instanceof ServerError ? error.status : 0;
        tell({ type: 'failed', problem: (error as Error).message, status, retryAtMs: Date.now() + pauseMs });
        await new Promise<void>((resolve) => {
          wake = resolve;
          setTimeout(resolve, pauseMs);
        });
      }
    }
  }

  void keepOpen();
  return {
    close: () => {
      life.abort();
      wake();
    },
    retryNow: () => wake(),
  };
}

/** One connection from start to end; always ends by throwing. */
async function readOnce(life: AbortSignal, tell: (event: LiveEvent) => void): Promise<never> {
  const silence = new AbortController();
  const stop = () => silence.abort(new Error(`Nothing arrived for ${SILENCE_MS / 1000} s.`));
  let timer = setTimeout(stop, SILENCE_MS);
  const signal = AbortSignal.any([life, silence.signal]);
  try {
    const response = await call('v1/live', { headers: { Accept: 'text/event-stream' }, signal });
    const type = response.headers.get('content-type') ?? 'no content type';
    if (!type.startsWith('text/event-stream') || response.body === null) {
      throw new Error(`The server answered v1/live with ${type}, not with an event stream.`);
    }
    tell({ type: 'opened', skewMs: clockSkewMs(response.headers.get('date'), Date.now()) });
    const reader = new EventStreamReader();
    const pieces = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await pieces.read();
      if (done) throw new Error('The server ended the stream.');
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      for (const event of reader.push(value)) {
        if (event.name === 'fleet') tell({ type: 'event', data: event.data });
      }
    }
  } catch (error) {
    // A broken connection reads as a TypeError with the browser's own words: say it plainly.
    throw error instanceof TypeError ? new Error('The connection broke.') : error;
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}
