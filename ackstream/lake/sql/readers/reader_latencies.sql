-- How long readers take: per reader p50, p95 and maximum from the message to its acknowledgement, slowest p95 first.
-- reader: name of the reader
-- samples: how many it has acknowledged after its code has seen them
-- p50_ms: half of them were acknowledged within this time
-- p95_ms: 95 % of them were
-- max_ms: the slowest
SELECT t.reader,
       count(*) AS samples,
       CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY t.took_ms) AS BIGINT) AS p50_ms,
       CAST(percentile_disc(0.95) WITHIN GROUP (ORDER BY t.took_ms) AS BIGINT) AS p95_ms,
       max(t.took_ms) AS max_ms
FROM (SELECT d.reader, unix_millis(d.acknowledged_at) - unix_millis(m.received_at) AS took_ms
      FROM {deliveries} AS d
      JOIN {messages} AS m ON m.client = d.writer AND m.reason IS NULL AND m.seq >= d.first AND m.seq <= d.last
      WHERE d.auto IS NULL) AS t
GROUP BY t.reader
ORDER BY p95_ms DESC, t.reader
