-- The history of one message, named CLIENT/SEQ: stored, acknowledged by readers, delivered and settled by queues.
-- occurred_at: when it happened
-- step: what comes first at the same time: 1 message, 2 queue, 3 reader, 4 ignored report, 5 deletion
-- event: what happened
-- party: the publisher, reader, consumer or client that did it
-- place: the topic of the message, the role of the reader, or the queue
-- detail: why it was refused, returned or left, or why no code of the reader saw it
-- id: id of the row in its table, or coordinates of the message
SELECT m.received_at AS occurred_at, 1 AS step, CASE WHEN m.reason IS NULL THEN 'stored' ELSE 'refused' END AS event,
       m.client AS party, m.subject AS place, m.reason AS detail,
       concat_ws('-', m.topic, CAST(m.partition AS STRING), CAST(m.offset AS STRING)) AS id
FROM {messages} AS m WHERE m.client = {client} AND m.seq = {seq}
UNION ALL
SELECT e.at, 2, e.event, e.consumer, e.queue, concat_ws(' ', e.outcome, e.reason), e.message
FROM {queue_events} AS e
JOIN {messages} AS m ON m.topic = e.topic AND m.partition = e.partition AND m.offset = e.offset
WHERE m.client = {client} AND m.seq = {seq}
UNION ALL
SELECT d.acknowledged_at, 3, 'acknowledged', d.reader, d.role, d.auto, d.id
FROM {deliveries} AS d WHERE d.writer = {client} AND d.first <= {seq} AND d.last >= {seq}
UNION ALL
SELECT i.received_at, 4, 'report ignored', i.reader, CAST(NULL AS STRING), concat_ws(' ', i.reason, i.detail), i.id
FROM {ignored_reports} AS i WHERE i.writer = {client} AND i.first <= {seq} AND i.last >= {seq}
UNION ALL
SELECT s.deleted_at, 5, 'deleted', s.client, s.subject, s.cid, CAST(NULL AS STRING)
FROM {sow_deletes} AS s
JOIN {messages} AS m ON m.partition = s.partition AND m.offset = s.offset
  AND (s.received_at IS NULL OR s.received_at = m.received_at)
WHERE m.client = {client} AND m.seq = {seq}
ORDER BY occurred_at, step, id
