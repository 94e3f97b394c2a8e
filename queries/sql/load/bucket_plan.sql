-- How is the length axis cut, who serves which part, and how even is it?
-- tables: buckets
-- units: from_tokens and to_tokens tokens; load in instances; imbalance largest over mean
select model, at, state, trigger, bucket, from_tokens, to_tokens, instances, load, target_load, imbalance
from (select *, rank() over (partition by model order by plan desc) as place from buckets)
where place = 1 order by model, bucket
