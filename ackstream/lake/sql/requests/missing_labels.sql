-- Who does not acknowledge in time: per label how often, how many came late, and the share of those waited for.
-- party: the part of the label before its colon
-- label: the label
-- requested: how many requests waited for it; those that an error or their requester ended early did not
-- missing: how many of these it was missing from
-- late: how many of the missing were acknowledged after the deadline
-- never: how many of the missing were not
-- share: missing as a share of requested
SELECT split_part(w.label, ':', 1) AS party,
       w.label,
       count(*) AS requested,
       count(CASE WHEN w.missed THEN 1 END) AS missing,
       count(CASE WHEN w.missed AND l.received_at IS NOT NULL THEN 1 END) AS late,
       count(CASE WHEN w.missed AND l.received_at IS NULL THEN 1 END) AS never,
       count(CASE WHEN w.missed THEN 1 END) / CAST(count(*) AS DOUBLE) AS share
FROM (SELECT q.correlation_id, q.decided_at, q.label, array_contains(q.missing, q.label) AS missed
      FROM (SELECT o.correlation_id, o.decided_at, o.missing, explode(o.requested) AS label
            FROM {outcomes} AS o
            WHERE o.completed_by NOT IN ('error', 'invalid', 'amended', 'cancelled')) AS q) AS w
      -- long after the deadline the request is forgotten, and they are orphans
LEFT JOIN (SELECT a.correlation_id, a.label, max(a.received_at) AS received_at
           FROM {acknowledgements} AS a
           WHERE a.disposition IN ('late', 'orphan')
           GROUP BY a.correlation_id, a.label) AS l
       ON l.correlation_id = w.correlation_id AND l.label = w.label AND l.received_at > w.decided_at
GROUP BY w.label
HAVING count(CASE WHEN w.missed THEN 1 END) > 0
ORDER BY missing DESC, w.label
