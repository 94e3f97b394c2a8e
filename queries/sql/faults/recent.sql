-- What went wrong in Evenkeel itself?
-- tables: faults
-- units: times counts of what the rows stand for
-- parameter: minutes whole 1440 how far back
select component, kind, sum("count") as times, max(at) as latest, last_value(detail order by at) as last_detail
from faults
where at > now() - interval '{minutes} minutes'
group by component, kind order by latest desc, component
