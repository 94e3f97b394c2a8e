-- Which deadlines were missed, by how much, and was it foreseen?
-- tables: slo
-- units: seconds; meet_probability 0 to 1
-- parameter: minutes whole 15 how far back
-- parameter: most whole 20 rows
select request_id, at, tier, instance, -margin_seconds as late_seconds, wait_seconds, first_token_seconds,
       predicted_first_token_seconds, meet_probability, prompt_tokens, cached_tokens
from slo
where is_met = false and at > now() - interval '{minutes} minutes'
order by late_seconds desc nulls last, request_id limit {most}
