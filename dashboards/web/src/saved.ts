// Saved queries: the server's list, grouped by subject, each with its statement ready to run.
import { call } from './api';

export interface Saved {
  /** `<subject>/<name>`. */
  name: string;
  question: string;
  tables: string[];
  units: string;
  /** With the question above it and the defaults in it. */
  statement: string;
}

/** The saved queries, in the server's order. */
export async function savedQueries(signal: AbortSignal): Promise<Saved[]> {
  return readSaved(await (await call('sql/saved', { signal })).json());
}

/** What is whole of the server's list; anything else is left out. */
export function readSaved(body: unknown): Saved[] {
  if (!Array.isArray(body)) return [];
  return body.flatMap((one: unknown) => {
    const { name, question, tables, units, statement } = (one ?? {}) as Record<string, unknown>;
    if (typeof name !== 'string' || typeof question !== 'string' || typeof statement !== 'string') return [];
    const named = Array.isArray(tables) ? tables.filter((table) => typeof table === 'string') : [];
    return [{ name, question, tables: named, units: typeof units === 'string' ? units : '', statement }];
  });
}

/** Queries by subject, both in order. */
export function bySubject(queries: readonly Saved[]): [string, Saved[]][] {
  const groups = new Map<string, Saved[]>();
  for (const query of queries) {
    const subject = query.name.split('/')[0] ?? '';
    groups.set(subject, [...(groups.get(subject) ?? []), query]);
  }
  return [...groups];
}
