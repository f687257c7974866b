-- Who does not acknowledge in time: per day and label how often, newest day first, then most frequent.
-- day: UTC day of the requests
-- party: the part of the label before its colon
-- label: the label
-- requested: how many requests waited for it; those that an error or their requester ended early did not
-- missing: how many of these it was missing from
-- share: missing as a share of requested
SELECT w.day,
       split_part(w.label, ':', 1) AS party,
       w.label,
       count(*) AS requested,
       count(CASE WHEN w.missed THEN 1 END) AS missing,
       count(CASE WHEN w.missed THEN 1 END) / CAST(count(*) AS DOUBLE) AS share
FROM (SELECT q.day, q.label, array_contains(q.missing, q.label) AS missed
      FROM (SELECT o.day, o.missing, explode(o.requested) AS label
            FROM {outcomes} AS o
            WHERE o.completed_by NOT IN ('error', 'invalid', 'amended', 'cancelled')) AS q) AS w
GROUP BY w.day, w.label
HAVING count(CASE WHEN w.missed THEN 1 END) > 0
ORDER BY w.day DESC, missing DESC, w.label
