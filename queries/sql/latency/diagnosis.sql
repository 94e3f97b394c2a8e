-- Why were the slowest requests slow: queueing, long steps, or bandwidth?
-- tables: diagnosis
-- units: slow_seconds seconds; shares 0 to 1; decode_ratio times the fit
-- parameter: minutes whole 60 how far back
select as_of, model, verdict, requests, slow_requests, slow_seconds, queue_share, spike_share, decode_ratio, worst_requests
from diagnosis
where as_of > now() - interval '{minutes} minutes'
order by as_of desc, model
