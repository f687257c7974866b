-- Messages delivered more than once: per queue and subject how many, how often, and why they came back.
-- queue: name of the queue
-- subject: topic named by the publisher
-- messages: messages with more than one delivery
-- most_deliveries: highest number of deliveries of one of them
-- last_reason: why one of them was last returned
-- last_at: when one of them was last delivered
SELECT r.queue, r.subject, count(*) AS messages, max(r.deliveries) AS most_deliveries,
       max_by(coalesce(r.returned_for, ''), r.last_at) AS last_reason, max(r.last_at) AS last_at
FROM (SELECT e.queue, e.message, max(e.subject) AS subject, max(e.count) AS deliveries,
             max_by(CASE WHEN e.event = 'returned' THEN coalesce(e.reason, '') END,
                    CASE WHEN e.event = 'returned' THEN e.at END) AS returned_for,
             max(CASE WHEN e.event = 'delivered' THEN e.at END) AS last_at
      FROM {queue_events} AS e
      WHERE e.event <> 'refused'
      GROUP BY e.queue, e.message) AS r
WHERE r.deliveries > 1
GROUP BY r.queue, r.subject
ORDER BY messages DESC, r.queue, r.subject
