-- the requests that somebody did not confirm in time: the last 100, latest first.
-- decided_at: when the request ended
-- correlation_id: correlation-id of the request
-- thing_id: the thing addressed
-- status: HTTP status of the reply
-- missing: labels that were requested and not acknowledged
SELECT o.decided_at, o.correlation_id, o.thing_id, o.status, o.missing
FROM {outcomes} AS o
WHERE o.completed_by = 'timeout'
ORDER BY o.decided_at DESC, o.correlation_id
LIMIT 100
