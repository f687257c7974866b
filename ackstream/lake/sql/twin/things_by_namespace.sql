-- Per namespace how many things exist and are deleted, and when the quietest and the latest one changed.
-- namespace: the part of the id before the colon
-- things: how many exist
-- deleted: how many are deleted
-- quietest_at: last change of the thing that has not changed for longest
-- latest_at: last change of any
SELECT split_part(t.thing_id, ':', 1) AS namespace,
       count(CASE WHEN NOT t.deleted THEN 1 END) AS things,
       count(CASE WHEN t.deleted THEN 1 END) AS deleted,
       min(CASE WHEN NOT t.deleted THEN t.modified_at END) AS quietest_at,
       max(t.modified_at) AS latest_at
FROM {things} AS t
GROUP BY split_part(t.thing_id, ':', 1)
ORDER BY things DESC, namespace
