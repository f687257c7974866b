"""Predefined questions to the tables.

Each is plain SQL that both Spark (:func:`ask`) and DuckDB (:func:`sql`) accept. DuckDB needs one line first, because it
has another name for ``explode``: ``CREATE MACRO explode(list) AS unnest(list)``.
"""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Lake

_OF_THE_REQUEST = """(correlation_id = {correlation_id}
              OR correlation_id BETWEEN concat({correlation_id}, '#') AND concat({correlation_id}, '#~'))"""
"""A gateway or a connection has added a suffix; the statistics of files answer a comparison."""

QUESTIONS = {
    "slowest_labels": """
        -- the slowest labels: per label count, p50, p95 and maximum of the latency, slowest p95 first.
        SELECT label,
               count(*) AS acknowledgements,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY latency_ms) AS p50_ms,
               percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) AS p95_ms,
               max(latency_ms) AS max_ms
        FROM {acknowledgements}
        WHERE disposition = 'accepted' AND label IS NOT NULL AND latency_ms IS NOT NULL
        GROUP BY label
        ORDER BY p95_ms DESC, label
    """,
    "missing_labels": """
        -- the labels not acknowledged in time: per party and label the count, and the share of those requested.
        SELECT split_part(label, ':', 1) AS party,
               label,
               count(*) AS requested,
               count(CASE WHEN array_contains(missing, label) THEN 1 END) AS missing,
               count(CASE WHEN array_contains(missing, label) THEN 1 END) / CAST(count(*) AS DOUBLE) AS share
        FROM (SELECT explode(requested) AS label, missing FROM {outcomes}) AS waited
        GROUP BY label
        HAVING count(CASE WHEN array_contains(missing, label) THEN 1 END) > 0
        ORDER BY missing DESC, label
    """,
    "timeouts_by_hour": """
        -- when requests time out: per UTC hour the requests decided, those that timed out, and their share.
        SELECT date_trunc('hour', decided_at) AS hour,
               count(*) AS decided,
               count(CASE WHEN completed_by = 'timeout' THEN 1 END) AS timeouts,
               count(CASE WHEN completed_by = 'timeout' THEN 1 END) / CAST(count(*) AS DOUBLE) AS share
        FROM {outcomes}
        GROUP BY date_trunc('hour', decided_at)
        ORDER BY hour
    """,
    "outcomes_by_status": """
        -- how requests end: per status and cause (completed_by) count, p50, p95 and maximum of the latency.
        SELECT status,
               completed_by,
               count(*) AS outcomes,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY latency_ms) AS p50_ms,
               percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) AS p95_ms,
               max(latency_ms) AS max_ms
        FROM {outcomes}
        GROUP BY status, completed_by
        ORDER BY outcomes DESC, status, completed_by
    """,
    "unused_acknowledgements": """
        -- the unused acknowledgements: per disposition (late, duplicate, ...) and label.
        SELECT disposition,
               label,
               count(*) AS acknowledgements,
               count(DISTINCT correlation_id) AS requests,
               max(received_at) AS last_received_at
        FROM {acknowledgements}
        WHERE disposition <> 'accepted'
        GROUP BY disposition, label
        ORDER BY acknowledgements DESC, disposition, label
    """,
    "refusals": """
        -- the refusals of the gateway: per event, subject, address and reason the attempts, and the last one.
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
    """,
    "story": """
        -- the story of one correlation-id, with or without a suffix: its rows from all tables, in order of time.
        SELECT received_at AS occurred_at, 1 AS step, 'request' AS event, CAST(NULL AS STRING) AS label,
               CAST(NULL AS INTEGER) AS status, concat_ws(' ', channel, criterion, action, path) AS detail,
               value AS content, id
        FROM {signals} WHERE {the_request}
        UNION ALL
        SELECT received_at, 2, 'acknowledgement', label, status, concat_ws(' ', disposition, reason), payload, id
        FROM {acknowledgements} WHERE {the_request}
        UNION ALL
        SELECT decided_at, 3, 'outcome', CAST(NULL AS STRING), status, completed_by, reply, id
        FROM {outcomes} WHERE {the_request}
        UNION ALL
        SELECT received_at, 4, 'dead letter', CAST(NULL AS STRING), CAST(NULL AS INTEGER), reason,
               CAST(NULL AS STRING), id
        FROM {dead_letters} WHERE {the_request}
        ORDER BY occurred_at, step, id
    """.replace("{the_request}", _OF_THE_REQUEST),
}
"""The SQL of the questions by name, with tables and parameters in braces; its first line describes the answer."""


def about(name: str) -> str:
    """Return what a question returns, in words."""
    return QUESTIONS[name].strip().partition("\n")[0].removeprefix("-- ")


def tables_of(name: str) -> list[str]:
    """Return the tables that a question is about."""
    fields = {field for _, field, _, _ in Formatter().parse(QUESTIONS[name]) if field}
    return sorted(fields - {"correlation_id"})


def sql(name: str) -> str:
    """Return a question's SQL with the tables under their own names, and a question mark for each parameter."""
    return QUESTIONS[name].format(correlation_id="?", **{table: table for table in tables_of(name)})


def ask(spark: SparkSession, lake: Lake, name: str, correlation_id: str = "") -> DataFrame:
    """Ask Spark a question.

    :param correlation_id: of the request that ``story`` is about
    :raises StartError: if a table does not exist yet
    """
    from ackstream.lake import tables  # noqa: PLC0415 - DuckDB is asked without Spark

    frames = {table: tables.read(spark, lake, table) for table in tables_of(name)}
    return spark.sql(QUESTIONS[name], correlation_id=correlation_id, **frames)
