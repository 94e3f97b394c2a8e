// The only way from the page to the server: one `call` that adds the key, and turns every failure into a ServerError
// with words that a person can act on. The key lives in this tab's session storage.

const KEY = 'evenkeel.key';

/** A call that did not succeed. `status` is the HTTP status, or 0 when the server could not be reached. */
export class ServerError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | null,
  ) {
    super(message);
  }
}

export function rememberKey(key: string): void {
  sessionStorage.setItem(KEY, key);
}

/** Calls `path`, relative to the page. Returns only successful responses; an aborted call throws its AbortError. */
export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = sessionStorage.getItem(KEY);
  if (key !== null && key !== '') headers.set('Authorization', `Bearer ${key}`);
  let response: Response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted === true) throw error;
    throw new ServerError('The server cannot be reached.', 0, null);
  }
  if (response.ok) return response;
  throw refusal(response.status, response.statusText, await response.text());
}

/** The error of a refused call: the server's own words where its body has them. */
export function refusal(status: number, statusText: string, body: string): ServerError {
  const named = `HTTP ${status}${statusText === '' ? '' : ` ${statusText}`}`;
  try {
    const error = (JSON.parse(body) as { error?: { message?: unknown; code?: unknown } }).error;
    if (typeof error?.message === 'string') {
      return new ServerError(error.message, status, typeof error.code === 'string' ? error.code : null);
    }
  } catch {
    // Not JSON: the status says all there is to say.
  }
  return new ServerError(`The server answered ${named}.`, status, null);
}

/** The course of a request in words, a line a step (SPEC X3). */
export async function explained(request: string, signal: AbortSignal): Promise<string[]> {
  const path = `v1/requests/${encodeURIComponent(request)}/explain`;
  const body = (await (await call(path, { signal })).json()) as { summary?: unknown };
  return Array.isArray(body.summary) ? body.summary.filter((line) => typeof line === 'string') : [];
}

/** Names of the models served, in the server's order. */
export async function models(signal: AbortSignal): Promise<string[]> {
  const body = (await (await call('v1/models', { signal })).json()) as { data?: { id?: unknown }[] };
  return (body.data ?? []).flatMap((model) => (typeof model.id === 'string' ? [model.id] : []));
}
