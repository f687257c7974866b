-- Reports of readers that were not used: per reason and reader count and last one, most frequent first.
-- reason: why: stale-count, unreadable, ...; reader-expired: it was removed
-- reader: name of the reader, if it could be read
-- reports: how many
-- last_at: broker time of the last one
-- detail: what is wrong with one of them
SELECT i.reason, i.reader, count(*) AS reports, max(i.received_at) AS last_at, max(i.detail) AS detail
FROM {ignored_reports} AS i
GROUP BY i.reason, i.reader
ORDER BY reports DESC, i.reason, i.reader
