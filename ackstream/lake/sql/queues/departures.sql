-- How messages leave queues: per queue, outcome and reason (settled, expired, dead letter, ...) count and last one.
-- queue: name of the queue
-- outcome: settled, dead-letter or discarded
-- reason: why it left, if it was not settled
-- messages: how many
-- p50_ms: half of them were in the queue no longer than this
-- p95_ms: 95 % of them were
-- last_at: when the last one left
SELECT e.queue,
       e.outcome,
       e.reason,
       count(*) AS messages,
       CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY e.took_ms) AS BIGINT) AS p50_ms,
       CAST(percentile_disc(0.95) WITHIN GROUP (ORDER BY e.took_ms) AS BIGINT) AS p95_ms,
       max(e.at) AS last_at
FROM (SELECT q.queue, q.outcome, q.reason, q.at, unix_millis(q.at) - unix_millis(q.received_at) AS took_ms
      FROM {queue_events} AS q
      WHERE q.event = 'left') AS e
GROUP BY e.queue, e.outcome, e.reason
ORDER BY e.queue, messages DESC, e.outcome, e.reason
