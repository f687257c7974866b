-- Numbers between two messages of a client that no message has, longest gap first.
-- client: name of the publisher
-- first_missing: the first number without a message
-- last_missing: the last one
-- missing: how many numbers that is; the publisher withdrew them, or they have not arrived
-- next_at: broker time of the message after the gap
SELECT g.client, g.previous + 1 AS first_missing, g.seq - 1 AS last_missing, g.seq - g.previous - 1 AS missing,
       g.received_at AS next_at
FROM (SELECT m.client, m.seq, m.received_at, lag(m.seq) OVER (PARTITION BY m.client ORDER BY m.seq) AS previous
      FROM {messages} AS m
      WHERE m.client IS NOT NULL AND m.seq IS NOT NULL) AS g
WHERE g.seq > g.previous + 1
ORDER BY missing DESC, g.client, first_missing
