-- Which requests took longest, and how much of it was waiting?
-- tables: slo
-- units: seconds; tokens
-- parameter: minutes whole 15 how far back
-- parameter: most whole 20 rows
select request_id, at, tier, instance, whole_seconds, wait_seconds, first_token_seconds, prompt_tokens, cached_tokens,
       output_tokens, outcome
from slo
where at > now() - interval '{minutes} minutes'
order by whole_seconds desc, request_id limit {most}
