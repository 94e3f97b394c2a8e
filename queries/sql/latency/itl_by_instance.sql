-- How long are the gaps between tokens, by instance?
-- tables: requests
-- units: itl_ms milliseconds
-- parameter: minutes whole 15 how far back
select instance, count(*) as gaps,
       approx_percentile_cont(0.5) within group (order by gap_us / 1000.0) as itl_ms_p50,
       approx_percentile_cont(0.95) within group (order by gap_us / 1000.0) as itl_ms_p95,
       approx_percentile_cont(0.99) within group (order by gap_us / 1000.0) as itl_ms_p99
from requests
where event = 'grew' and gap_us is not null and at > now() - interval '{minutes} minutes'
group by instance order by instance
