-- How evenly is the finished work shared between the instances?
-- tables: requests
-- units: requests counts; tokens; percent of all tokens
-- parameter: minutes whole 60 how far back
select instance, count(*) as requests, sum(prompt_tokens - coalesce(cached_tokens, 0)) as computed_prompt_tokens,
       sum(output_tokens) as output_tokens,
       round(100.0 * sum(output_tokens) / sum(sum(output_tokens)) over (), 1) as percent
from requests
where event = 'finished' and at > now() - interval '{minutes} minutes'
group by instance order by instance
