// Scenario: event streams cut into pieces at every place, with LF and CRLF, comments, several data lines, and one that
// never ends.
// Guarantees: the same events whatever the pieces; nothing before its empty line; an event without an end is refused,
// not hoarded.
import { expect, test } from 'vitest';
import { EVENT_CHARS_MAX, EventStreamReader } from '../../src/sse';

const STREAM = ': hello\n\nevent: fleet\ndata: {"a":1}\n\ndata:one\ndata: two\nid: 7\n\nevent: fleet\n\n';
const EVENTS = [
  { name: 'fleet', data: '{"a":1}' },
  { name: 'message', data: 'one\ntwo' },
];

test.each([
  ['LF', STREAM],
  ['CRLF', STREAM.replaceAll('\n', '\r\n')],
])('any cut of a stream with %s gives the same events', (_, text) => {
  for (let cut = 0; cut <= text.length; cut++) {
    const reader = new EventStreamReader();
    expect([...reader.push(text.slice(0, cut)), ...reader.push(text.slice(cut))], `cut at ${cut}`).toEqual(EVENTS);
  }
});

test('an event comes out when its empty line does', () => {
  const reader = new EventStreamReader();
  expect(reader.push('event: fleet\ndata: 1\n')).toEqual([]);
  expect(reader.push('\n')).toEqual([{ name: 'fleet', data: '1' }]);
});

test('an event beyond the bound is refused', () => {
  const reader = new EventStreamReader();
  expect(() => reader.push(`data: ${'x'.repeat(EVENT_CHARS_MAX)}`)).toThrow(/more than/);
});
