-- Requests without an outcome: they are open, or correlate stands still; oldest first, at most 100.
-- day: UTC day of the request
-- received_at: broker time of the request
-- correlation_id: correlation-id of the request
-- thing_id: the thing addressed
-- requested_acks: labels requested
-- timeout_ms: how long it may stay open
SELECT s.day, s.received_at, s.correlation_id, s.thing_id, s.requested_acks, s.timeout_ms
FROM {signals} AS s
     -- instead of NOT EXISTS, where DuckDB reads outcomes of all days
LEFT JOIN {outcomes} AS o ON o.day = s.day AND o.id = s.id
WHERE s.response_required AND o.id IS NULL
ORDER BY s.received_at, s.correlation_id
LIMIT 100
