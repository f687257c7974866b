-- Why messages of publishers were refused: per publisher and reason count and last one, most frequent first.
-- client: name of the publisher; empty if it gave none
-- reason: why they were refused
-- messages: how many
-- highest_seq: highest number among them
-- last_at: broker time of the last one
SELECT m.client, m.reason, count(*) AS messages, max(m.seq) AS highest_seq, max(m.received_at) AS last_at
FROM {messages} AS m
WHERE m.reason IS NOT NULL
GROUP BY m.client, m.reason
ORDER BY messages DESC, m.client, m.reason
