-- When requests time out: per UTC hour the requests decided, those that timed out, and their share.
-- hour: the hour, in UTC
-- decided: how many requests ended in it
-- timeouts: how many of these because something was missing at the deadline
-- share: timeouts as a share of decided
SELECT date_trunc('hour', decided_at) AS hour,
       count(*) AS decided,
       count(CASE WHEN completed_by = 'timeout' THEN 1 END) AS timeouts,
       count(CASE WHEN completed_by = 'timeout' THEN 1 END) / CAST(count(*) AS DOUBLE) AS share
FROM {outcomes}
WHERE version IS NULL
GROUP BY date_trunc('hour', decided_at)
ORDER BY hour
