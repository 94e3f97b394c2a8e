-- What happened to one request, from arrival to end?
-- tables: requests, decisions, shadow_decisions
-- units: after_ms milliseconds
-- parameter: request text null id of the request
select * from explain({request}) order by at, kind
