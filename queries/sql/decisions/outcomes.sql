-- What was decided, under which throttling, with views of which quality, and why?
-- tables: decisions
-- units: counts of decisions
-- parameter: minutes whole 60 how far back
select outcome, throttle_step, view_mode,
       case when outcome = 'reject' then split_part(reason, ':', 1) else route_policy end as why, count(*) as decisions
from decisions
where at > now() - interval '{minutes} minutes'
group by 1, 2, 3, 4 order by decisions desc, outcome
