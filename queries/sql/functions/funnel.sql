-- How many prompt tokens reached each layer of the hit-rate funnel, and why the others did not?
-- tables: funnel_window
-- units: tokens and lost_tokens tokens; percent of the prompt tokens; lost_seconds seconds of prefill
-- parameter: minutes whole 15 how far back
-- parameter: model text null one model alone
-- parameter: tier text null one tier alone
with chosen as (
  select layer, reason, tokens, predicted_seconds from funnel_window
  where span = 'tumbling' and as_of > now() - interval '{minutes} minutes'
    and ({model} is null or model = {model}) and ({tier} is null or tier = {tier})
), layers as (
  select layer, case layer when 'prompt' then 1 when 'potential' then 2 when 'present' then 3 when 'visible' then 4
                           when 'eligible' then 5 when 'selected' then 6 else 7 end as step,
         sum(case when reason is null then tokens else 0 end) as tokens,
         sum(case when reason is not null then tokens else 0 end) as lost_tokens,
         sum(case when reason is not null then predicted_seconds end) as lost_seconds
  from chosen group by layer
), losses as (
  select layer, reason, row_number() over (partition by layer order by sum(tokens) desc, reason) as place
  from chosen where reason is not null group by layer, reason
)
select l.step, l.layer, l.tokens, round(100.0 * l.tokens / first_value(l.tokens) over (order by l.step), 1) as percent,
       l.lost_tokens, l.lost_seconds, r.reason as main_reason
from layers l left join losses r on r.layer = l.layer and r.place = 1
