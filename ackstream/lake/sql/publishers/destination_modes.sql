-- Further lakes that acknowledgements wait for: per destination its mode, since when, and why.
-- destination: name in the settings
-- mode: sync: acknowledgements wait for it; async: they do not
-- cause: downgrade, upgrade or start
-- changed_at: since when
-- changes: how often the mode has changed or a start has set it
-- downgrades: how often it was too slow
-- age_ms: age of the oldest message that it lacked at the change
SELECT d.destination,
       max_by(d.mode, d.changed_at) AS mode,
       max_by(d.cause, d.changed_at) AS cause,
       max(d.changed_at) AS changed_at,
       count(*) AS changes,
       count(CASE WHEN d.cause = 'downgrade' THEN 1 END) AS downgrades,
       max_by(d.age_ms, d.changed_at) AS age_ms
FROM {destinations} AS d
GROUP BY d.destination
ORDER BY d.destination
