-- Do the predicted chances of deadlines come true?
-- tables: slo_reliability
-- units: chances and shares 0 to 1; counts of requests
select model, tier, predicted_from, predicted_to, requests, predicted_mean, met_share
from slo_reliability
where as_of = (select max(as_of) from slo_reliability)
order by model, tier, predicted_from
