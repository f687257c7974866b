-- Who acknowledges twice: per day and label the acknowledgements of a label that was acknowledged before.
-- day: UTC day of the acknowledgements
-- label: the label
-- acknowledgements: how many were duplicates; they had no effect. Those after the decision are late instead
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
WHERE a.disposition = 'duplicate'
GROUP BY a.day, a.label
ORDER BY a.day DESC, acknowledgements DESC, a.label
