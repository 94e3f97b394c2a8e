-- Where on the length axis is the load now?
-- tables: atom_load
-- units: tokens; requests counts
select from_tokens, to_tokens, sum(tokens) as tokens, sum(requests) as requests, count(distinct instance) as instances
from atom_load
where as_of = (select max(as_of) from atom_load)
group by from_tokens, to_tokens order by from_tokens
