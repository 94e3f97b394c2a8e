-- How many conversations are active, and how long do they get?
-- tables: session_activity
-- units: sessions and requests counts; turns user messages
-- parameter: minutes whole 60 how far back
select as_of, model, sessions, requests, turns_p50, turns_p95, sampled_one_in
from session_activity
where as_of > now() - interval '{minutes} minutes'
order by as_of, model
