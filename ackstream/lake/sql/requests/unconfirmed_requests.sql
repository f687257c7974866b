-- Requests without success, with what was missing and who answered negatively: the last 100, latest first.
-- decided_at: when the request ended
-- correlation_id: correlation-id of the request
-- thing_id: the thing addressed
-- status: HTTP status of the reply: not 200 to 299
-- completed_by: acknowledgements, response, timeout, cancelled, error or invalid
-- missing: labels that were requested and not acknowledged before the request ended; a cancellation ends it early
-- negative: the label and status of each negative answer, sorted; error and status if an error ended it; null if none
SELECT o.decided_at, o.correlation_id, o.thing_id, o.status, o.completed_by, o.missing, n.negative
FROM {outcomes} AS o
LEFT JOIN (SELECT p.id, array_sort(array_agg(concat(coalesce(a.label, 'error'), ' ', CAST(a.status AS STRING))))
                  AS negative
           FROM {outcomes} AS p
           JOIN {acknowledgements} AS a ON a.correlation_id = p.correlation_id
           -- one of an earlier request of the same id came before, one that seems older than its own has no latency
           WHERE a.disposition = 'accepted' AND a.status NOT BETWEEN 200 AND 299 AND a.received_at <= p.decided_at
                 AND (a.received_at >= p.started_at OR a.latency_ms = 0)
           GROUP BY p.id) AS n ON n.id = o.id
WHERE o.status NOT BETWEEN 200 AND 299 AND NOT EXISTS (SELECT 1 FROM {outcomes} AS v WHERE v.reply_id = o.reply_id AND v.version = 2)
ORDER BY o.decided_at DESC, o.correlation_id
LIMIT 100
