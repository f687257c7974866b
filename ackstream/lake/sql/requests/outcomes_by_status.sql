-- How requests end: per status and cause (completed_by) count, p50, p95 and maximum of the latency.
-- status: HTTP status of the reply
-- completed_by: acknowledgements, response, timeout, amended, cancelled, error or invalid
-- outcomes: how many requests ended like this
-- p50_ms: half of them took no longer than this, from the request to the decision
-- p95_ms: 95 % of them took no longer
-- max_ms: the longest
SELECT status,
       completed_by,
       count(*) AS outcomes,
       CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY latency_ms) AS BIGINT) AS p50_ms,
       CAST(percentile_disc(0.95) WITHIN GROUP (ORDER BY latency_ms) AS BIGINT) AS p95_ms,
       max(latency_ms) AS max_ms
FROM {outcomes}
GROUP BY status, completed_by
ORDER BY outcomes DESC, status, completed_by
