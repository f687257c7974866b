-- Acknowledgements without effect: per disposition and label, those that requests missed first.
-- disposition: why it was not used: duplicate, unrequested, undeclared, late, orphan, invalid
-- label: the label; null of an error, or if none could be read
-- acknowledgements: how many; without answers of the twin and responses that nobody waited for, which are no fault
-- requests: how many correlation-ids they named
-- missed: how many of these were decided without the label, though they had requested it; not those cancelled
-- last_received_at: broker time of the last one
SELECT a.disposition,
       a.label,
       count(*) AS acknowledgements,
       count(DISTINCT a.correlation_id) AS requests,
       count(DISTINCT m.correlation_id) AS missed,
       max(a.received_at) AS last_received_at
FROM {acknowledgements} AS a
LEFT JOIN (SELECT DISTINCT q.correlation_id, q.label
           FROM (SELECT o.correlation_id, explode(o.missing) AS label FROM {outcomes} AS o
                 WHERE o.completed_by <> 'cancelled') AS q) AS m
       ON m.correlation_id = a.correlation_id AND m.label = a.label
WHERE a.disposition NOT IN ('accepted', 'progress')
  AND NOT (a.disposition IN ('late', 'unrequested') AND m.label IS NULL
           AND coalesce(a.label, 'twin-persisted') IN ('twin-persisted', 'search-persisted', 'live-response'))
GROUP BY a.disposition, a.label
ORDER BY missed DESC, acknowledgements DESC, a.disposition, coalesce(a.label, '')
