-- Does speculation pay: what share of the guessed tokens is right?
-- tables: engine_steps
-- units: tokens; accepted_share 0 to 1
-- parameter: minutes whole 15 how far back
select instance, sum(proposed_tokens) as proposed_tokens, sum(accepted_tokens) as accepted_tokens,
       sum(accepted_tokens) * 1.0 / nullif(sum(proposed_tokens), 0) as accepted_share
from engine_steps
where at > now() - interval '{minutes} minutes'
group by instance order by instance
