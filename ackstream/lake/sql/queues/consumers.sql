-- Messages that consumers took from queues: those received, returned and settled, and the last time.
-- queue: name of the queue
-- consumer: name of the consumer
-- delivered: deliveries to it
-- returned: deliveries that came back from it
-- finished: messages that left the queue through it
-- refused: settlements of it without effect
-- last_at: its last event
SELECT e.queue,
       e.consumer,
       count(CASE WHEN e.event = 'delivered' THEN 1 END) AS delivered,
       count(CASE WHEN e.event = 'returned' THEN 1 END) AS returned,
       count(CASE WHEN e.event = 'left' THEN 1 END) AS finished,
       count(CASE WHEN e.event = 'refused' THEN 1 END) AS refused,
       max(e.at) AS last_at
FROM {queue_events} AS e
WHERE e.consumer IS NOT NULL
GROUP BY e.queue, e.consumer
ORDER BY e.queue, e.consumer
