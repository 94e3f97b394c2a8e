// Scenario: the server's list of saved queries, and bodies that are none.
// Guarantees: whole entries come through in order and by subject; broken ones are left out.
import { expect, test } from 'vitest';
import { bySubject, readSaved } from '../../src/saved';

const one = (name: string) => ({ name, question: 'How?', tables: ['requests'], units: 'ms', statement: 'SELECT 1' });

test('whole entries come through, broken ones are left out', () => {
  expect(readSaved([one('a/b'), { name: 'x' }, null, 3, { ...one('c/d'), tables: [1, 't'], units: null }])).toEqual([
    one('a/b'),
    { ...one('c/d'), tables: ['t'], units: '' },
  ]);
  expect(readSaved({ error: 'no' })).toEqual([]);
});

test('queries stand under their subjects', () => {
  const groups = bySubject([one('cache/funnel'), one('latency/ttft'), one('cache/hits')]);
  expect(groups.map(([subject, group]) => [subject, group.map(({ name }) => name)])).toEqual([
    ['cache', ['cache/funnel', 'cache/hits']],
    ['latency', ['latency/ttft']],
  ]);
});
