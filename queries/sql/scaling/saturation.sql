-- How near to its capacity was the fleet, and which step of throttling held?
-- tables: decisions
-- units: saturation 1.0 is full; counts of decisions
-- parameter: minutes whole 60 how far back
select date_trunc('minute', at) as minute, avg(saturation) as saturation_mean, max(saturation) as saturation_max,
       count(*) filter (where throttle_step not in ('none', 'open')) as throttled, count(*) as decisions
from decisions
where at > now() - interval '{minutes} minutes'
group by 1 order by 1
