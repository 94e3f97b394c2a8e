-- Which rows did the dataflow not take, and why?
-- tables: refused_rows
-- units: rows counts
-- parameter: minutes whole 1440 how far back
select topic, reason, field, sum("count") as rows, max(at) as latest
from refused_rows
where at > now() - interval '{minutes} minutes'
group by topic, reason, field order by rows desc, topic
