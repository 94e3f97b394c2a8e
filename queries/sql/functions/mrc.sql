-- What would a cache of another capacity hit? The newest miss-ratio curve, a row for each capacity.
-- tables: mrc
-- units: capacity_blocks blocks, capacity_tokens tokens; hit_rate and error 0 to 1; points_for_twice in points of the hit rate
-- parameter: scope text all whose prompts: all, model, tier or tenant
-- parameter: subject text null which model, tier or tenant; NULL with scope all
with points as (
  select as_of, capacity_blocks, capacity_tokens, hit_rate, hit_rate_error, prompts, window_seconds
  from mrc
  where scope = {scope} and coalesce(model, tier, tenant, '') = coalesce({subject}, '')
    and as_of = (select max(as_of) from mrc
                 where scope = {scope} and coalesce(model, tier, tenant, '') = coalesce({subject}, ''))
)
select a.as_of, a.capacity_blocks, a.capacity_tokens, a.hit_rate, a.hit_rate_error,
       round(100 * (b.hit_rate - a.hit_rate), 2) as points_for_twice, a.prompts, a.window_seconds
from points a left join points b on b.capacity_blocks = 2 * a.capacity_blocks
