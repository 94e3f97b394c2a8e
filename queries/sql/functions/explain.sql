-- Why did a request go as it did? Its events, decisions and what shadow policies would have decided.
-- tables: requests, decisions, shadow_decisions
-- units: after_ms milliseconds since the first row; tokens as in the row's detail
-- parameter: request text null id of the request, as in the header x-evenkeel-request-id
with life as (
  select at, 'event' as kind, event as what, instance,
         concat_ws(', ', cast(output_tokens as varchar) || ' of output', cast(cached_tokens as varchar) || ' cached', finish_reason, error) as detail
  from requests where request_id = {request} and event <> 'grew'
  union all
  select at, 'decision', outcome, instance,
         concat(tier, ' (', tier_reason, '): ', reason, '; views ', view_mode, ', throttle ', throttle_step, ', ',
                cardinality(candidates), ' candidates')
  from decisions where request_id = {request}
  union all
  select at, 'shadow', shadow_outcome, shadow_instance, concat(shadow, ': ', shadow_tier, ', ', shadow_reason)
  from shadow_decisions where request_id = {request}
)
select at, round(cast(arrow_cast(at, 'Int64') - min(arrow_cast(at, 'Int64')) over () as double) / 1000, 3) as after_ms,
       kind, what, instance, detail
from life
