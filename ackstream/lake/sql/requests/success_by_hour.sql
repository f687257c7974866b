-- How often requests succeed: per UTC hour and label the requests that asked for it and the share that succeeded.
-- day: UTC day of the requests
-- hour: the hour of the request, in UTC
-- label: the label
-- requested: how many decided requests of this hour asked for it
-- acknowledged: how many of these it acknowledged in time, or did not have to
-- succeeded: how many of these had a reply with a status below 400
-- share: succeeded as a share of requested
SELECT q.day,
       date_trunc('hour', q.started_at) AS hour,
       q.label,
       count(*) AS requested,
       count(CASE WHEN NOT array_contains(q.missing, q.label) THEN 1 END) AS acknowledged,
       count(CASE WHEN q.status < 400 THEN 1 END) AS succeeded,
       count(CASE WHEN q.status < 400 THEN 1 END) / CAST(count(*) AS DOUBLE) AS share
FROM (SELECT o.day, o.started_at, o.status, o.missing, explode(o.requested) AS label
      FROM {outcomes} AS o
      WHERE o.version IS NULL) AS q
GROUP BY q.day, date_trunc('hour', q.started_at), q.label
ORDER BY hour, q.label
