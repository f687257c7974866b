-- Who is slow: per day and label count, p50, p95 and maximum of the latency, newest day first, then slowest p95.
-- day: UTC day of the acknowledgements
-- label: the label
-- acknowledgements: how many were accepted; late ones are not
-- p50_ms: half of them came within this time after the request
-- p95_ms: 95 % of them came within this time
-- max_ms: the slowest
SELECT day,
       label,
       count(*) AS acknowledgements,
       CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY latency_ms) AS BIGINT) AS p50_ms,
       CAST(percentile_disc(0.95) WITHIN GROUP (ORDER BY latency_ms) AS BIGINT) AS p95_ms,
       max(latency_ms) AS max_ms
FROM {acknowledgements}
WHERE disposition = 'accepted' AND label IS NOT NULL AND latency_ms IS NOT NULL
GROUP BY day, label
ORDER BY day DESC, p95_ms DESC, label
