-- How much would more cache buy?
-- tables: mrc
-- units: capacity_blocks blocks, capacity_tokens tokens; hit_rate 0 to 1; points_for_twice in points of the hit rate
-- parameter: scope text all whose prompts: all, model, tier or tenant
-- parameter: subject text null which model, tier or tenant
select capacity_blocks, capacity_tokens, hit_rate, hit_rate_error, points_for_twice, prompts
from mrc({scope}, {subject}) order by capacity_blocks nulls last
