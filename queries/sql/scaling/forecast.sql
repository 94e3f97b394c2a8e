-- What arrivals are forecast, and how sure is it?
-- tables: arrival_trend
-- units: requests a second; horizon_seconds seconds
select model, as_of, arrivals / period_seconds as per_second, level, growth_per_minute, horizon_seconds, forecast_low, forecast,
       forecast_high
from (select *, row_number() over (partition by model order by as_of desc) as place from arrival_trend)
where place = 1 order by model
