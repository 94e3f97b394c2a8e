-- How often do running sequences have to give way, and what is copied for it?
-- tables: engine_steps
-- units: sequences; blocks
-- parameter: minutes whole 60 how far back
select instance, date_trunc('minute', at) as minute, sum(preempted) as preempted, sum(swapped) as swapped,
       sum(swapped_out_blocks) as swapped_out_blocks, sum(swapped_in_blocks) as swapped_in_blocks
from engine_steps
where at > now() - interval '{minutes} minutes'
group by 1, 2 order by minute, instance
