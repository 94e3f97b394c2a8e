// Statements to begin with. The page test runs each of them against a real server.
export interface Example {
  id: string;
  label: string;
  query: string;
}

export const EXAMPLES: readonly Example[] = [
  {
    id: 'latency',
    label: 'TTFT by tier',
    query: `SELECT tier, count(*) AS requests,
       approx_percentile_cont(gap_us / 1000.0, 0.5) AS ttft_p50_ms,
       approx_percentile_cont(gap_us / 1000.0, 0.95) AS ttft_p95_ms
FROM requests
WHERE event = 'first_token'
GROUP BY tier ORDER BY tier`,
  },
  {
    id: 'instances',
    label: 'Work per instance',
    query: `SELECT instance, count(*) AS steps, sum(decode_tokens) AS decode_tokens,
       sum(prefill_tokens) AS prefill_tokens, avg(step_us) / 1000.0 AS mean_step_ms
FROM engine_steps
WHERE "at" >= now() - INTERVAL '1 minute'
GROUP BY instance ORDER BY instance`,
  },
  {
    id: 'hits',
    label: 'Cache hit rate',
    query: `SELECT instance, sum(cached_tokens) AS cached_tokens, sum(scheduled_prompt_tokens) AS prompt_tokens,
       CAST(sum(cached_tokens) AS DOUBLE) / nullif(sum(scheduled_prompt_tokens), 0) AS hit_rate
FROM engine_steps
GROUP BY instance ORDER BY instance`,
  },
  {
    id: 'decisions',
    label: 'Last decisions',
    query: `SELECT "at", request_id, tier, outcome, instance, reason, predicted_hit_tokens, predicted_seconds
FROM decisions
ORDER BY "at" DESC LIMIT 50`,
  },
  {
    id: 'refusals',
    label: 'Refusals',
    query: `SELECT outcome, throttle_step, reason, count(*) AS decisions
FROM decisions
WHERE outcome <> 'admit'
GROUP BY outcome, throttle_step, reason ORDER BY decisions DESC`,
  },
  {
    id: 'faults',
    label: 'Faults',
    query: `SELECT "at", component, kind, detail, count
FROM faults
ORDER BY "at" DESC LIMIT 50`,
  },
  {
    id: 'columns',
    label: 'Tables and columns',
    query: `SELECT table_name, column_name, data_type
FROM information_schema.columns
WHERE table_schema = 'public'
ORDER BY table_name, ordinal_position`,
  },
];
