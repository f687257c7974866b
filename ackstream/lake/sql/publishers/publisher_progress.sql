-- Per client the number up to which everything is stored or refused, and what lies beyond it.
-- client: name of the publisher
-- last_seq: everything up to this number is stored or refused
-- highest_seq: highest number of a stored message
-- beyond: stored messages after last_seq, which wait for a number that has not arrived
-- batch: batch of persist in which this was so
SELECT p.client, p.last_seq, max(m.seq) AS highest_seq, count(CASE WHEN m.seq > p.last_seq THEN 1 END) AS beyond,
       p.batch
FROM (SELECT q.client, max(q.batch) AS batch, max_by(q.last_seq, q.batch) AS last_seq
      FROM {publishers} AS q
      GROUP BY q.client) AS p
LEFT JOIN {messages} AS m ON m.client = p.client AND m.reason IS NULL
GROUP BY p.client, p.last_seq, p.batch
ORDER BY beyond DESC, p.client
