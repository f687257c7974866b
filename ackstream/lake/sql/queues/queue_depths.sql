-- Per queue the messages delivered at least once that are still there, and how old the oldest one is; deepest first.
-- queue: name of the queue
-- unfinished: messages with a consumer, or waiting to be delivered again
-- oldest_at: broker time of the oldest one
-- most_deliveries: highest number of deliveries of one of them
-- last_event_at: when the queue last delivered, took back or lost a message
SELECT q.queue,
       count(CASE WHEN NOT q.gone THEN 1 END) AS unfinished,
       min(CASE WHEN NOT q.gone THEN q.received_at END) AS oldest_at,
       max(CASE WHEN NOT q.gone THEN q.deliveries END) AS most_deliveries,
       max(q.last_at) AS last_event_at
FROM (SELECT e.queue, e.message, max(e.received_at) AS received_at, max(e.count) AS deliveries, max(e.at) AS last_at,
             max(CASE WHEN e.event = 'left' THEN 1 ELSE 0 END) = 1 AS gone
      FROM {queue_events} AS e
      WHERE e.event <> 'refused'
      GROUP BY e.queue, e.message) AS q
GROUP BY q.queue
ORDER BY unfinished DESC, q.queue
