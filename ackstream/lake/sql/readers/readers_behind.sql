-- How far readers are behind: per reader and writer the stored messages after the highest one that it acknowledged.
-- day: UTC day of these messages
-- reader: name of the reader
-- writer: publisher of the messages
-- highest: highest number that the reader has acknowledged
-- newest: highest number of a message of that day
-- behind: how many of these messages the reader has not acknowledged
-- oldest_at: broker time of the oldest one
SELECT m.day, k.reader, k.writer, k.highest, max(m.seq) AS newest, count(*) AS behind, min(m.received_at) AS oldest_at
FROM (SELECT d.reader, d.writer, max(d.last) AS highest FROM {deliveries} AS d GROUP BY d.reader, d.writer) AS k
JOIN {messages} AS m ON m.client = k.writer AND m.reason IS NULL AND m.seq > k.highest
GROUP BY m.day, k.reader, k.writer, k.highest
ORDER BY m.day DESC, behind DESC, k.reader, k.writer
