-- Who publishes: per client the messages accepted and refused, their numbers, and when the last one came.
-- client: name of the publisher; empty if it gave none
-- accepted: messages stored for readers
-- refused: messages stored as refused only
-- lowest_seq: lowest number of an accepted message
-- highest_seq: highest number of an accepted message
-- payload_bytes: bytes of the accepted values
-- last_at: broker time of its last message
SELECT m.client,
       count(CASE WHEN m.reason IS NULL THEN 1 END) AS accepted,
       count(m.reason) AS refused,
       min(CASE WHEN m.reason IS NULL THEN m.seq END) AS lowest_seq,
       max(CASE WHEN m.reason IS NULL THEN m.seq END) AS highest_seq,
       sum(CASE WHEN m.reason IS NULL THEN octet_length(m.value) END) AS payload_bytes,
       max(m.received_at) AS last_at
FROM {messages} AS m
GROUP BY m.client
ORDER BY accepted DESC, m.client
