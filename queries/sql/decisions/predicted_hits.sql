-- Does routing get the cache hits that it believed in?
-- tables: requests
-- units: tokens; kept 0 to 1
-- parameter: minutes whole 60 how far back
select instance, count(*) as requests, sum(expected_hit_tokens) as expected_tokens, sum(cached_tokens) as reused_tokens,
       sum(cached_tokens) * 1.0 / nullif(sum(expected_hit_tokens), 0) as kept
from requests
where event = 'finished' and at > now() - interval '{minutes} minutes'
group by instance order by instance
