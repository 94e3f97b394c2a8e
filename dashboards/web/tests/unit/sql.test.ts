// Scenario: cells of every kind, refusals with and without a body, and recorded steps.
// Guarantees: digits untouched, literals that cannot break out, and no invented points.
import { expect, test } from 'vitest';
import { refusal } from '../../src/api';
import { cellText, explaining, historyPoints, instant, literal } from '../../src/sql';

test('cells keep every digit, and NULL is told from text', () => {
  expect(cellText(0.1 + 0.2)).toBe('0.30000000000000004');
  expect(cellText('18446744073709551615')).toBe('18446744073709551615');
  expect(cellText([{ a: 1 }])).toBe('[{"a":1}]');
  expect(cellText(null)).toBeNull();
  expect(cellText(undefined)).toBeNull();
  expect(cellText('')).toBe('');
});

test('times are told to the microsecond', () => {
  expect(cellText(1_772_600_767_123.456, 'time')).toBe('2026-03-04T05:06:07.123456Z');
  expect(instant(1_772_600_767_000)).toBe('2026-03-04T05:06:07.000000Z');
  expect(instant(-0.001)).toBe('1969-12-31T23:59:59.999999Z');
});

test('a literal cannot break out', () => {
  expect(literal("a'; DROP TABLE x; --")).toBe("'a''; DROP TABLE x; --'");
  expect(explaining("r'1")).toContain("request_id = 'r''1'");
});

test("a refusal speaks the server's words, or the status where there are none", () => {
  const body = JSON.stringify({
    error: { message: 'no table x', type: 'invalid_request_error', param: null, code: 'sql_plan' },
  });
  expect(refusal(400, 'Bad Request', body)).toMatchObject({ message: 'no table x', status: 400, code: 'sql_plan' });
  expect(refusal(502, 'Bad Gateway', '<html>').message).toBe('The server answered HTTP 502 Bad Gateway.');
  expect(refusal(500, '', '{"error":"plain"}').message).toBe('The server answered HTTP 500.');
});

test('a second without a step between two with one had no tokens; before the first nothing is known', () => {
  const points = historyPoints([
    { second: 7000, decode_tokens: 5, prefill_tokens: 0 },
    { second: 10_000, decode_tokens: 7 },
    { second: null, decode_tokens: 9 },
  ]);
  const start = 7;
  expect(points.map(({ at }) => at - start)).toEqual([0, 1, 2, 3]);
  expect(points.map((point) => point.tokensPerSecond)).toEqual([5, 0, 0, 7]);
  expect(points.at(-1)).toMatchObject({ promptTokensPerSecond: null, ttftP50: null });
});

test('the hit rate of the past is over the minute before, as it is in the stream', () => {
  const row = (second: number, cached_tokens: number, prompt_tokens: number) => ({
    second: second * 1000,
    cached_tokens,
    prompt_tokens,
  });
  const points = historyPoints([row(100, 0, 50), row(101, 50, 50), row(160, 0, 100), row(250, 0, 0)]);
  const rateAt = (second: number) => points.find(({ at }) => at === second)?.hitRate;
  expect([100, 101, 159, 160, 161, 219, 220].map(rateAt)).toEqual([0, 0.5, 0.5, 50 / 150, 0, 0, null]);
});
