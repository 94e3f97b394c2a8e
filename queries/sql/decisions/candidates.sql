-- Why did a request go to its instance: every candidate with its cost?
-- tables: decisions
-- units: seconds; hit_tokens tokens
-- parameter: request text null id of the request
select decision_id, c['instance'] as candidate, c['instance'] = instance as chosen, c['hit_tokens'] as hit_tokens,
       c['queue_seconds'] as queue_seconds, c['prefill_seconds'] as prefill_seconds, c['fetch_seconds'] as fetch_seconds,
       c['interference_seconds'] as interference_seconds, c['total_seconds'] as total_seconds,
       c['compared_seconds'] as compared_seconds
from (select at, decision_id, instance, unnest(candidates) as c from decisions where request_id = {request})
order by at, c['compared_seconds'], candidate
