-- Who answers negatively: per label and status count and last one with its request, most frequent first.
-- label: the label; null of an error that ended a request
-- status: HTTP status: not 200 to 299
-- acknowledgements: how many were accepted with it
-- last_received_at: broker time of the last one
-- example: correlation-id of the last one, for the question story
SELECT a.label,
       a.status,
       count(*) AS acknowledgements,
       max(a.received_at) AS last_received_at,
       max_by(a.correlation_id, a.received_at) AS example
FROM {acknowledgements} AS a
WHERE a.disposition = 'accepted' AND a.status NOT BETWEEN 200 AND 299
GROUP BY a.label, a.status
ORDER BY acknowledgements DESC, coalesce(a.label, ''), a.status
