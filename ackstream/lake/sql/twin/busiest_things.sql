-- The 50 things that change most: the changes in the journal, the paths changed, and the last change.
-- thing_id: namespace:name
-- changes: changes in the journal
-- paths: how many paths they changed
-- revision: revision after the last one
-- last_at: broker time of the last one
SELECT e.thing_id, count(*) AS changes, count(DISTINCT e.path) AS paths, max(e.revision) AS revision,
       max(e.modified_at) AS last_at
FROM {thing_events} AS e
GROUP BY e.thing_id
ORDER BY changes DESC, e.thing_id
LIMIT 50
