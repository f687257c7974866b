-- Paths that a search can use: the number of things that have each, its values and their range; most frequent first.
-- path: path within the thing, as in RQL
-- things: how many things have it
-- distinct_values: how many different values
-- lowest: lowest number, if values are numbers
-- highest: highest number
SELECT s.path, count(DISTINCT s.thing_id) AS things, count(DISTINCT s.value) AS distinct_values,
       min(s.number) AS lowest, max(s.number) AS highest
FROM {things_search} AS s
GROUP BY s.path
ORDER BY things DESC, s.path
