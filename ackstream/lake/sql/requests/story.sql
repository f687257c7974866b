-- All rows about one correlation-id, with or without a suffix, from all tables, in order of time.
-- occurred_at: when it happened
-- step: what comes first at the same time: 1 request, 2 acknowledgement, 3 outcome, 4 dead letter
-- event: what happened
-- label: label of an acknowledgement
-- status: HTTP status of an acknowledgement or of the reply
-- detail: what was asked, what became of an acknowledgement, or what completed the request
-- content: JSON: the value, the payload or the reply
-- id: id of the row in its table
-- traceparent: the trace of a request, if it has one
-- correlation_id: correlation-id of the row, with the suffix of the gateway or connection that sent the request
-- thing_id: the thing that a request or its outcome is about
-- day: UTC day of the row
-- terms: topic, partition and offset of a request, its labels and its timeout
SELECT received_at AS occurred_at, 1 AS step, 'request' AS event, CAST(NULL AS STRING) AS label,
       CAST(NULL AS INTEGER) AS status, concat_ws(' ', channel, criterion, action, path) AS detail,
       value AS content, id, nullif(regexp_extract(headers, '"traceparent":"([^"]*)"', 1), '') AS traceparent,
       correlation_id, thing_id, day,
       concat_ws(', ', concat_ws('-', s.topic, CAST(s.partition AS STRING), CAST(s.offset AS STRING)),
                 'labels ' || nullif(array_join(requested_acks, ' '), ''),
                 'timeout ' || CAST(timeout_ms AS STRING) || ' ms') AS terms
FROM {signals} AS s WHERE (correlation_id = {correlation_id}
      OR correlation_id BETWEEN concat({correlation_id}, '#') AND concat({correlation_id}, '#~'))
UNION ALL
SELECT received_at, 2, 'acknowledgement', label, status, concat_ws(' ', disposition, reason), payload, id,
       CAST(NULL AS STRING), correlation_id, CAST(NULL AS STRING), day, CAST(NULL AS STRING)
FROM {acknowledgements} WHERE (correlation_id = {correlation_id}
      OR correlation_id BETWEEN concat({correlation_id}, '#') AND concat({correlation_id}, '#~'))
UNION ALL
SELECT decided_at, 3, 'outcome', CAST(NULL AS STRING), status, completed_by, reply, id,
       CAST(NULL AS STRING), correlation_id, thing_id, day, CAST(NULL AS STRING)
FROM {outcomes} WHERE (correlation_id = {correlation_id}
      OR correlation_id BETWEEN concat({correlation_id}, '#') AND concat({correlation_id}, '#~'))
UNION ALL
SELECT received_at, 4, 'dead letter', CAST(NULL AS STRING), CAST(NULL AS INTEGER), reason,
       CAST(NULL AS STRING), id, CAST(NULL AS STRING), correlation_id, CAST(NULL AS STRING), day, CAST(NULL AS STRING)
FROM {dead_letters} WHERE (correlation_id = {correlation_id}
      OR correlation_id BETWEEN concat({correlation_id}, '#') AND concat({correlation_id}, '#~'))
ORDER BY occurred_at, step, id
