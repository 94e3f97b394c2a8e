-- Which instances reuse their cache, and how full are they?
-- tables: engine_steps
-- units: tokens; hit_rate and filled 0 to 1
-- parameter: minutes whole 15 how far back
select instance, sum(scheduled_prompt_tokens) as prompt_tokens,
       sum(cached_tokens) * 1.0 / nullif(sum(scheduled_prompt_tokens), 0) as hit_rate,
       max((blocks_used + blocks_cached) * 1.0 / nullif(blocks_total, 0)) as filled
from engine_steps
where at > now() - interval '{minutes} minutes'
group by instance order by instance
