-- How many requests came, finished and were refused, minute by minute?
-- tables: requests
-- units: counts of requests; prompt_tokens tokens
-- parameter: minutes whole 60 how far back
select date_trunc('minute', at) as minute,
       count(*) filter (where event = 'arrived') as arrived,
       count(*) filter (where event = 'finished') as finished,
       count(*) filter (where event = 'rejected') as refused,
       count(*) filter (where event in ('failed', 'cancelled')) as failed_or_cancelled,
       sum(case when event = 'arrived' then prompt_tokens else 0 end) as prompt_tokens
from requests
where event in ('arrived', 'finished', 'rejected', 'failed', 'cancelled') and at > now() - interval '{minutes} minutes'
group by 1 order by 1
