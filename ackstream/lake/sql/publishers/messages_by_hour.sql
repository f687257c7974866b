-- When messages arrive: per UTC hour and subject the accepted ones, their publishers and bytes.
-- hour: the hour, in UTC
-- subject: topic named by the publisher
-- messages: how many were accepted
-- publishers: how many clients sent them
-- payload_bytes: bytes of their values
SELECT date_trunc('hour', m.received_at) AS hour,
       m.subject,
       count(*) AS messages,
       count(DISTINCT m.client) AS publishers,
       sum(octet_length(m.value)) AS payload_bytes
FROM {messages} AS m
WHERE m.reason IS NULL
GROUP BY date_trunc('hour', m.received_at), m.subject
ORDER BY hour, m.subject
