-- At which layer do prompt tokens fail to be hits, and for which reason most?
-- tables: funnel_window
-- units: tokens; percent of the prompt tokens; lost_seconds seconds of prefill
-- parameter: minutes whole 15 how far back
select * from funnel({minutes}) order by step
