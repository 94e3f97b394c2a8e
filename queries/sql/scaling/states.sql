-- When did instances start, become ready and die, and how long did it take?
-- tables: instances
-- units: seconds in the state before
-- parameter: minutes whole 1440 how far back
select at, name, epoch, state, model, phase_us / 1e6 as seconds, detail
from instances
where at > now() - interval '{minutes} minutes' order by at, name
