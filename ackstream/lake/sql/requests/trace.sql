-- The requests of a trace, oldest first, and how each ended; the trace is their header traceparent.
-- received_at: broker time of the request
-- correlation_id: correlation-id of the request, for the question story
-- thing_id: the thing addressed
-- asked: what was asked
-- status: HTTP status of the reply; null while the request is open, and of one that awaits nothing
-- completed_by: what completed it first; null likewise
-- latency_ms: from the request to the decision
-- span: the span of the trace that sent the request
-- traceparent: the trace and the span as the request has them
SELECT s.received_at, s.correlation_id, s.thing_id, concat_ws(' ', s.channel, s.criterion, s.action, s.path) AS asked,
       o.status, o.completed_by, o.latency_ms,
       regexp_extract(s.headers, '"traceparent":"[^"-]*-[^"-]*-([^"-]*)', 1) AS span,
       regexp_extract(s.headers, '"traceparent":"([^"]*)"', 1) AS traceparent
FROM {signals} AS s
LEFT JOIN {outcomes} AS o ON o.day = s.day AND o.id = s.id
WHERE s.headers LIKE concat('%"traceparent":"__-', {trace_id}, '-%')
ORDER BY s.received_at, s.correlation_id
