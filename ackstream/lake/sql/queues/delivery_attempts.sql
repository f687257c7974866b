-- How many attempts messages take: per day, queue and number of the attempt the deliveries, newest day first.
-- day: UTC day of the deliveries
-- queue: name of the queue
-- attempt: 1 for the first delivery of a message, 2 for the second, ...
-- deliveries: how many there were
-- consumers: how many consumers received them
-- last_at: broker time of the last one
SELECT e.day,
       e.queue,
       e.count AS attempt,
       count(*) AS deliveries,
       count(DISTINCT e.consumer) AS consumers,
       max(e.at) AS last_at
FROM {queue_events} AS e
WHERE e.event = 'delivered'
GROUP BY e.day, e.queue, e.count
ORDER BY e.day DESC, e.queue, attempt
