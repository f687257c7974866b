-- Messages that a reader has not finished: those of a writer, stored after the first one that it acknowledged.
-- reader: name of the reader
-- writer: publisher of the samples
-- unfinished: how many messages it has not acknowledged
-- first_seq: lowest number among them
-- last_seq: highest number among them
-- oldest_at: broker time of the oldest one
SELECT k.reader, k.writer, count(*) AS unfinished, min(m.seq) AS first_seq, max(m.seq) AS last_seq,
       min(m.received_at) AS oldest_at
FROM (SELECT d.reader, d.writer, min(d.first) AS began FROM {deliveries} AS d GROUP BY d.reader, d.writer) AS k
JOIN {messages} AS m ON m.client = k.writer AND m.reason IS NULL AND m.seq >= k.began
WHERE NOT EXISTS (SELECT 1 FROM {deliveries} AS d
                  WHERE d.reader = k.reader AND d.writer = k.writer AND d.first <= m.seq AND d.last >= m.seq)
GROUP BY k.reader, k.writer
ORDER BY unfinished DESC, k.reader, k.writer
