-- Unusable records: per day, topic and reason count, first and last one, newest day first, then most frequent.
-- day: UTC day of the records
-- topic: Kafka topic of the records
-- reason: why they could not be used
-- records: how many there are
-- first_at: broker time of the first one
-- last_at: broker time of the last one
-- example: coordinates of one of them: topic-partition-offset
SELECT d.day, d.topic, d.reason, count(*) AS records, min(d.received_at) AS first_at, max(d.received_at) AS last_at,
       max(d.id) AS example
FROM {dead_letters} AS d
GROUP BY d.day, d.topic, d.reason
ORDER BY d.day DESC, records DESC, d.topic, d.reason
