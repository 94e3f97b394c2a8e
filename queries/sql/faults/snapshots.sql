-- Which snapshots were written or failed, how large are they and how long did they take?
-- tables: snapshots
-- units: rows, files, bytes counts; took_ms milliseconds
-- parameter: minutes whole 1440 how far back
select at, name, target, cause, outcome, base, rows, files, bytes, took_us / 1000.0 as took_ms, detail
from snapshots
where at > now() - interval '{minutes} minutes' order by at desc
