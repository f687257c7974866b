-- the unused acknowledgements: per disposition (late, duplicate, ...) and label.
-- disposition: why it was not used: duplicate, unrequested, undeclared, late, orphan, invalid
-- label: the label, if it could be read
-- acknowledgements: how many there were
-- requests: how many correlation-ids they named
-- last_received_at: broker time of the last one
SELECT disposition,
       label,
       count(*) AS acknowledgements,
       count(DISTINCT correlation_id) AS requests,
       max(received_at) AS last_received_at
FROM {acknowledgements}
WHERE disposition <> 'accepted'
GROUP BY disposition, label
ORDER BY acknowledgements DESC, disposition, label
