-- Requests without an outcome: they are open, or correlate stands still; oldest first, at most 100.
-- received_at: broker time of the request
-- correlation_id: correlation-id of the request
-- thing_id: the thing addressed
-- requested_acks: labels requested
-- timeout_ms: how long it may stay open
SELECT s.received_at, s.correlation_id, s.thing_id, s.requested_acks, s.timeout_ms
FROM {signals} AS s
WHERE s.response_required AND NOT EXISTS (SELECT 1 FROM {outcomes} AS o WHERE o.id = s.id)
ORDER BY s.received_at, s.correlation_id
LIMIT 100
