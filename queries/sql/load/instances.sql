-- How busy and how full is each instance now?
-- tables: instance_load
-- units: sequences; tokens; percent_blocks of the pool; rates per second
select instance, running, waiting, leased_tokens, context_tokens, queued_prefill_tokens,
       round(blocks_used * 100.0 / nullif(blocks_total, 0), 1) as percent_blocks, prefill_tokens_per_second,
       decode_step_seconds, tokens_per_second
from instance_load
where as_of = (select max(as_of) from instance_load) order by instance
