-- How long does it take until a started instance is ready?
-- tables: instances
-- units: seconds
-- parameter: minutes whole 1440 how far back
select model, count(*) as starts, min(phase_us) / 1e6 as seconds_min, avg(phase_us) / 1e6 as seconds_mean,
       max(phase_us) / 1e6 as seconds_max
from instances
where state = 'ready' and at > now() - interval '{minutes} minutes'
group by model order by model
