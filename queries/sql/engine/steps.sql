-- What do the engines' steps hold, and how long do they take?
-- tables: engine_steps
-- units: step_ms milliseconds; tokens
-- parameter: minutes whole 15 how far back
select instance, count(*) as steps, sum(prefill_tokens) as prefill_tokens, sum(decode_tokens) as decode_tokens,
       approx_percentile_cont(0.5) within group (order by step_us / 1000.0) as step_ms_p50,
       approx_percentile_cont(0.99) within group (order by step_us / 1000.0) as step_ms_p99,
       max(running) as running_max, max(waiting) as waiting_max
from engine_steps
where at > now() - interval '{minutes} minutes'
group by instance order by instance
