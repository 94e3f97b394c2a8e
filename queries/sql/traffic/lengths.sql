-- How long are prompts and answers, by model and tier?
-- tables: requests
-- units: tokens
-- parameter: minutes whole 60 how far back
select model, tier, count(*) as requests,
       approx_percentile_cont(0.5) within group (order by prompt_tokens) as prompt_p50,
       approx_percentile_cont(0.95) within group (order by prompt_tokens) as prompt_p95,
       approx_percentile_cont(0.99) within group (order by prompt_tokens) as prompt_p99,
       approx_percentile_cont(0.5) within group (order by output_tokens) as output_p50,
       approx_percentile_cont(0.95) within group (order by output_tokens) as output_p95,
       approx_percentile_cont(0.99) within group (order by output_tokens) as output_p99
from requests
where event = 'finished' and at > now() - interval '{minutes} minutes'
group by model, tier order by model, tier
