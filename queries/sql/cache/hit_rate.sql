-- What share of the prompt tokens came from the cache, minute by minute?
-- tables: engine_steps
-- units: tokens; hit_rate 0 to 1
-- parameter: minutes whole 60 how far back
select date_trunc('minute', at) as minute, sum(scheduled_prompt_tokens) as prompt_tokens, sum(cached_tokens) as cached_tokens,
       sum(cached_tokens) * 1.0 / sum(scheduled_prompt_tokens) as hit_rate
from engine_steps
where scheduled_prompt_tokens > 0 and at > now() - interval '{minutes} minutes'
group by 1 order by 1
