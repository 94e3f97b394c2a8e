-- Why did the hit rate fall: which losses grew, now against the time before?
-- tables: funnel_window
-- units: tokens; seconds_now seconds of prefill
-- parameter: minutes whole 5 length of now, and of the time before it
select model, layer, reason,
       sum(case when as_of > now() - interval '{minutes} minutes' then tokens else 0 end) as tokens_now,
       sum(case when as_of <= now() - interval '{minutes} minutes' then tokens else 0 end) as tokens_before,
       sum(case when as_of > now() - interval '{minutes} minutes' then predicted_seconds else 0 end) as seconds_now
from funnel_window
where span = 'tumbling' and reason is not null and as_of > now() - interval '{minutes} minutes' - interval '{minutes} minutes'
group by model, layer, reason order by tokens_now - tokens_before desc, layer, reason
