-- How did the time to the first token develop?
-- tables: requests
-- units: ttft_ms milliseconds
-- parameter: minutes whole 60 how far back
-- parameter: seconds whole 60 length of one point
select date_bin(interval '{seconds} seconds', at) as since, tier, count(*) as requests,
       approx_percentile_cont(0.5) within group (order by gap_us / 1000.0) as ttft_ms_p50,
       approx_percentile_cont(0.99) within group (order by gap_us / 1000.0) as ttft_ms_p99
from requests
where event = 'first_token' and at > now() - interval '{minutes} minutes'
group by 1, 2 order by 1, 2
