-- Who sends what: requests and tokens by tenant and tier, and each tenant's share of the prompt tokens?
-- tables: decisions
-- units: requests counts; prompt_tokens tokens; percent of all prompt tokens
-- parameter: minutes whole 60 how far back
with firsts as (
  select request_id, tenant, tier, prompt_tokens, turns, row_number() over (partition by request_id order by at) as place
  from decisions where at > now() - interval '{minutes} minutes'
)
select tenant, tier, count(*) as requests, sum(prompt_tokens) as prompt_tokens,
       round(100.0 * sum(prompt_tokens) / sum(sum(prompt_tokens)) over (), 1) as percent, round(avg(turns), 1) as turns_mean
from firsts where place = 1
group by tenant, tier order by prompt_tokens desc, tenant, tier
