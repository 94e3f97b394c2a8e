-- Which parts work in a lesser mode now, and what do they do in it?
-- tables: modes
-- units: none
select component, subject, mode, is_degraded, at as since, branch
from (select *, row_number() over (partition by component, subject order by at desc) as place from modes)
where place = 1 order by is_degraded desc, component, subject
