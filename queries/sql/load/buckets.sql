-- How much live work is in each bucket?
-- tables: load_totals
-- units: tokens; requests counts
select model, bucket, tokens, uncached_tokens, requests
from load_totals
where grouped_by = 'bucket' and as_of = (select max(as_of) from load_totals) order by model, bucket
