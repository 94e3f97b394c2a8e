-- How far can the cache index be trusted, instance by instance?
-- tables: cache_view
-- units: blocks; drift_ratio 0 to 1
select instance, at, event, mode, cause, held_blocks, indexed_blocks, differing_blocks, drift_ratio
from (select *, row_number() over (partition by instance order by at desc) as place from cache_view)
where place = 1 order by instance
