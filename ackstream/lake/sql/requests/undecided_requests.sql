-- Requests without an outcome: they are open, or correlate stands still; oldest first, at most 100.
-- day: UTC day of the request
-- received_at: broker time of the request
-- correlation_id: correlation-id of the request
-- thing_id: the thing addressed
-- requested_acks: labels requested
-- timeout_ms: how long it may stay open
SELECT q.day, max(q.received_at) AS received_at, max(q.correlation_id) AS correlation_id, max(q.thing_id) AS thing_id,
       max(q.requested_acks) AS requested_acks, max(q.timeout_ms) AS timeout_ms
FROM (SELECT s.day, s.id, s.received_at, s.correlation_id, s.thing_id, s.requested_acks, s.timeout_ms, 0 AS decided
      FROM {signals} AS s
      WHERE s.response_required
      -- nearly all: of these, a query about some days reads no other day
      UNION ALL
      SELECT o.day, o.id, NULL, NULL, NULL, NULL, NULL, 1
      FROM {outcomes} AS o
      WHERE o.day = DATE '1970-01-01' + CAST(floor(unix_millis(o.started_at) / 86400000) AS INTEGER)
      UNION ALL
      -- those decided on a later day than that of the request
      SELECT DATE '1970-01-01' + CAST(floor(unix_millis(o.started_at) / 86400000) AS INTEGER), o.id, NULL, NULL, NULL,
             NULL, NULL, 1
      FROM {outcomes} AS o
      WHERE o.day > DATE '1970-01-01' + CAST(floor(unix_millis(o.started_at) / 86400000) AS INTEGER)) AS q
GROUP BY q.day, q.id
HAVING max(q.decided) = 0
ORDER BY received_at, correlation_id
LIMIT 100
