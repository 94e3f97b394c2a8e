-- What share of the requests met its deadline, by tier?
-- tables: slo
-- units: counts of requests; percent_met of those that ran
-- parameter: minutes whole 15 how far back
select tier, count(*) as requests, count(*) filter (where is_met) as met, count(*) filter (where not is_met) as missed,
       count(*) filter (where outcome = 'refused') as refused,
       round(100.0 * count(*) filter (where is_met) / nullif(count(is_met), 0), 1) as percent_met,
       sum(case when is_met then output_tokens else 0 end) as tokens_in_time
from slo
where not is_trial and at > now() - interval '{minutes} minutes'
group by tier order by tier
