// Scenario: fleet events as the server sends them, with nulls, with missing and ill-typed fields, too long, and broken.
// Guarantees: numbers arrive as they are; anything else is unknown (null) and never 0; broken events throw and name the
// fault; lists are bounded.
import { expect, test } from 'vitest';
import { DECISIONS_MAX, parseFleet } from '../../src/fleet';

const AS_OF = '2026-03-04T05:06:07.089Z';

test('reads a whole event', () => {
  const fleet = parseFleet(
    JSON.stringify({
      as_of: AS_OF,
      view_mode: 'exact',
      throttle_step: 'open',
      tokens_per_second: 12.5,
      prompt_tokens_per_second: 0,
      requests_per_second: 1.5,
      ttft_ms: { p50: 90.5, p95: 300, p99: 500 },
      itl_ms: null,
      hit_rate: null,
      running: 3,
      waiting: 0,
      instances: [
        {
          instance: 0,
          name: 'w0',
          model: 'm',
          state: 'ready',
          running: 3,
          waiting: 0,
          context_tokens: 900,
          blocks_used: 57,
          blocks_cached: 10,
          blocks_total: 1024,
          tokens_per_second: 12.5,
          share: 1,
          load_seconds: 1.75,
        },
      ],
      atoms: [{ atom: 0, from_tokens: 0, to_tokens: 500, tokens: 900, requests: 3 }],
      decisions: [
        {
          at: AS_OF,
          request: 'r1',
          tier: 'High',
          outcome: 'admit',
          instance: 0,
          reason: 'only one',
          predicted_hit_tokens: 64,
          predicted_seconds: 0.08,
        },
      ],
      faults: 0,
    }),
  );
  expect(fleet.asOfMs).toBe(Date.parse(AS_OF));
  expect(fleet).toMatchObject({
    tokensPerSecond: 12.5,
    promptTokensPerSecond: 0,
    hitRate: null,
    waiting: 0,
    faults: 0,
  });
  expect(fleet.ttftMs).toEqual({ p50: 90.5, p95: 300, p99: 500 });
  expect(fleet.itlMs).toEqual({ p50: null, p95: null, p99: null });
  expect(fleet.instances[0]).toMatchObject({ name: 'w0', blocksUsed: 57, share: 1, loadSeconds: 1.75 });
  expect(fleet.atoms).toEqual([{ fromTokens: 0, toTokens: 500, tokens: 900, requests: 3 }]);
  expect(fleet.decisions[0]).toMatchObject({ request: 'r1', predictedHitTokens: 64, predictedSeconds: 0.08 });
});

test('what is missing or of another type is unknown, not 0', () => {
  const fleet = parseFleet(
    JSON.stringify({ as_of: AS_OF, running: '3', hit_rate: {}, instances: [{ instance: 4 }, 'w1', null] }),
  );
  expect(fleet).toMatchObject({
    tokensPerSecond: null,
    running: null,
    hitRate: null,
    faults: null,
    throttleStep: null,
  });
  expect(fleet.instances).toHaveLength(1);
  expect(fleet.instances[0]).toMatchObject({ name: '#4', state: 'unknown', running: null, share: null });
  expect(fleet.atoms).toEqual([]);
});

test.each([
  ['{', /JSON/],
  ['[1]', /not a JSON object/],
  ['{}', /as_of is undefined/],
  ['{"as_of": "noon"}', /as_of is "noon"/],
])('%s is refused with its fault named', (text, fault) => expect(() => parseFleet(text)).toThrow(fault));

test('keeps a bounded number of decisions', () => {
  const decisions = Array.from({ length: DECISIONS_MAX + 9 }, (_, index) => ({ at: AS_OF, request: `r${index}` }));
  const fleet = parseFleet(JSON.stringify({ as_of: AS_OF, decisions }));
  expect(fleet.decisions).toHaveLength(DECISIONS_MAX);
  expect(fleet.decisions[0]?.request).toBe('r0');
});
