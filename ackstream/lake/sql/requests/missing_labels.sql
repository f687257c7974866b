-- the labels not acknowledged in time: per party and label the count, and the share of those requested.
-- party: the part of the label before its colon
-- label: the label
-- requested: how many requests asked for it
-- missing: how many of these it was missing from
-- share: missing as a share of requested
SELECT split_part(label, ':', 1) AS party,
       label,
       count(*) AS requested,
       count(CASE WHEN array_contains(missing, label) THEN 1 END) AS missing,
       count(CASE WHEN array_contains(missing, label) THEN 1 END) / CAST(count(*) AS DOUBLE) AS share
FROM (SELECT explode(requested) AS label, missing FROM {outcomes}) AS waited
GROUP BY label
HAVING count(CASE WHEN array_contains(missing, label) THEN 1 END) > 0
ORDER BY missing DESC, label
