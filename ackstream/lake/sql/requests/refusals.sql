-- Attempts that the gateway refused: per event, subject, address and reason the count, and the last one.
-- event: sign-in, command, stream, answer or request
-- subject: who tried; of a failed sign-in the user it was about
-- address: where from
-- reason: why it was refused
-- attempts: how often
-- last_at: when it last happened
SELECT event,
       subject,
       address,
       reason,
       sum(count) AS attempts,
       max(received_at) AS last_at
FROM {audit}
WHERE NOT allowed
GROUP BY event, subject, address, reason
ORDER BY attempts DESC, last_at DESC, reason
