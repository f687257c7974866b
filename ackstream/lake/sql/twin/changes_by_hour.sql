-- When things change: per UTC hour and action (created, modified, merged, deleted) the changes and the things.
-- hour: the hour, in UTC
-- action: created, modified, merged or deleted
-- changes: how many
-- things: how many things they changed
SELECT date_trunc('hour', e.modified_at) AS hour, e.action, count(*) AS changes, count(DISTINCT e.thing_id) AS things
FROM {thing_events} AS e
GROUP BY date_trunc('hour', e.modified_at), e.action
ORDER BY hour, e.action
