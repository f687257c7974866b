-- Removals from the state of the world: per subject and client the count and the last one.
-- subject: topic of the messages
-- client: client that deleted them
-- messages: how many
-- commands: by how many commands
-- last_at: broker time of the last command
SELECT s.subject, s.client, count(*) AS messages, count(DISTINCT s.cid) AS commands, max(s.deleted_at) AS last_at
FROM {sow_deletes} AS s
GROUP BY s.subject, s.client
ORDER BY messages DESC, s.subject, s.client
