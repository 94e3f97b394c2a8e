-- What was refused or made to wait, and why?
-- tables: decisions
-- units: counts of decisions
-- parameter: minutes whole 60 how far back
select outcome, tier, throttle_step, split_part(reason, ':', 1) as why, count(*) as decisions, max(at) as latest
from decisions
where outcome <> 'admit' and at > now() - interval '{minutes} minutes'
group by 1, 2, 3, 4 order by decisions desc, why
