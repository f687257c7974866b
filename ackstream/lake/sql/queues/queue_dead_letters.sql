-- The last 100 messages that left a queue as dead letters, with the reason, latest first.
-- left_at: when it left
-- queue: name of the queue
-- subject: topic named by the publisher
-- reason: why
-- deliveries: how often it was delivered
-- message: its id: topic-partition-offset; its value is in the table messages
SELECT e.at AS left_at, e.queue, e.subject, e.reason, e.count AS deliveries, e.message
FROM {queue_events} AS e
WHERE e.event = 'left' AND e.outcome = 'dead-letter'
ORDER BY left_at DESC, e.message
LIMIT 100
