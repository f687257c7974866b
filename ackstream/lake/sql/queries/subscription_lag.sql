-- How far the query job is behind the messages: its last batch, and the batches of messages it has not seen.
-- batch: last batch of the query job that is recorded
-- position: batch of messages up to which its results are complete
-- newest: newest batch of messages
-- behind: newest minus position; a batch that only delivers is not recorded
SELECT s.batch, s.position, m.newest, m.newest - s.position AS behind
FROM (SELECT max(q.batch) AS batch, max_by(q.position, q.batch) AS position FROM {subscriptions} AS q) AS s
CROSS JOIN (SELECT max(n.batch) AS newest FROM {messages} AS n) AS m
WHERE s.batch IS NOT NULL
