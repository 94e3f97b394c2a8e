-- What would the shadow policies have decided otherwise, and what would it have changed?
-- tables: shadow_decisions
-- units: counts of decisions; percent_changed; seconds predicted to the first token
-- parameter: minutes whole 60 how far back
select shadow, acting_outcome, shadow_outcome, count(*) as decisions, count(*) filter (where is_changed) as changed,
       round(100.0 * count(*) filter (where is_changed) / count(*), 1) as percent_changed,
       avg(acting_seconds) as acting_seconds_mean, avg(shadow_seconds) as shadow_seconds_mean
from shadow_decisions
where at > now() - interval '{minutes} minutes'
group by shadow, acting_outcome, shadow_outcome order by shadow, decisions desc, acting_outcome
