-- Who acknowledges too late: per day and label the acknowledgements after the decision, newest day first.
-- day: UTC day of the acknowledgements
-- label: the label; without twin-persisted, search-persisted and live-response, which are often late by design
-- acknowledgements: how many came after their request had been decided
-- requests: how many correlation-ids they named
-- last_at: broker time of the last one
-- example: correlation-id of the last one, for the question story
SELECT a.day,
       a.label,
       count(*) AS acknowledgements,
       count(DISTINCT a.correlation_id) AS requests,
       max(a.received_at) AS last_at,
       max_by(a.correlation_id, a.received_at) AS example
FROM {acknowledgements} AS a
WHERE a.disposition = 'late' AND a.label NOT IN ('twin-persisted', 'search-persisted', 'live-response')
GROUP BY a.day, a.label
ORDER BY a.day DESC, acknowledgements DESC, a.label
