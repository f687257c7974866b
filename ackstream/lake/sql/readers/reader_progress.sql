-- How far readers are: per reader and writer the samples acknowledged, the highest one, and when the last was.
-- reader: name of the reader
-- role: its role
-- writer: publisher of the samples
-- samples: how many it has acknowledged
-- unseen: how many of these no code of the reader has seen: filtered or replaced
-- highest: highest number among them
-- last_at: broker time of its last acknowledgement
SELECT d.reader,
       max(d.role) AS role,
       d.writer,
       sum(d.last - d.first + 1) AS samples,
       sum(CASE WHEN d.auto IS NOT NULL THEN d.last - d.first + 1 ELSE 0 END) AS unseen,
       max(d.last) AS highest,
       max(d.acknowledged_at) AS last_at
FROM {deliveries} AS d
GROUP BY d.reader, d.writer
ORDER BY d.reader, d.writer
