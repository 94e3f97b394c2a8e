-- How long do requests wait for their first token, by tier?
-- tables: requests
-- units: ttft_ms milliseconds
-- parameter: minutes whole 15 how far back
select tier, count(*) as requests,
       approx_percentile_cont(0.5) within group (order by gap_us / 1000.0) as ttft_ms_p50,
       approx_percentile_cont(0.95) within group (order by gap_us / 1000.0) as ttft_ms_p95,
       approx_percentile_cont(0.99) within group (order by gap_us / 1000.0) as ttft_ms_p99
from requests
where event = 'first_token' and at > now() - interval '{minutes} minutes'
group by tier order by tier
