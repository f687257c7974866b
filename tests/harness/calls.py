"""What a batch asks of the JVM: calls, a millisecond each where the cores are busy, and Spark jobs."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.clientserver import ClientServerConnection
from py4j.java_gateway import JavaPackage, JVMView

from ackstream.observe import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest
    from pyspark.sql import SparkSession


_LOOKUPS = {JVMView: JVMView.__getattr__, JavaPackage: JavaPackage.__getattr__}
"""Py4J's own: each part of a name that is no class is looked for in all jars, every time."""


def remember_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look each name of a class or package of the JVM up once."""
    known: dict[tuple[Any, str], Any] = {}

    def remembering(lookup: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def found(parent: Any, name: str) -> Any:
            key = parent._gateway_client, f"{parent.__dict__.get('_fqn', '')}.{name}"
            if key not in known:
                known[key] = lookup(parent, name)
            return known[key]

        return found

    for kind, lookup in _LOOKUPS.items():
        monkeypatch.setattr(kind, "__getattr__", remembering(lookup))


def count_calls(monkeypatch: pytest.MonkeyPatch, query: str) -> Counter[int]:
    """Return the numbers of calls by the number of the batch; they grow as it works."""
    counted: Counter[int] = Counter()
    original = ClientServerConnection.send_command

    def send_command(connection: Any, command: str, *rest: Any, **options: Any) -> Any:
        about = logs._about.get() or {}
        if about.get("query") == query:
            counted[about["batch"]] += 1  # type: ignore[index]
        return original(connection, command, *rest, **options)

    monkeypatch.setattr(ClientServerConnection, "send_command", send_command)
    for kind, lookup in _LOOKUPS.items():
        # as without remember_classes()
        monkeypatch.setattr(kind, "__getattr__", lookup)
    return counted


@contextmanager
def spark_jobs(spark: SparkSession, group: str) -> Iterator[Callable[[], list[int]]]:
    """Give a function that returns the Spark jobs that this thread has started within the block.

    :param group: a name that no other test uses
    """
    context = spark.sparkContext
    context.setJobGroup(group, group)
    try:
        yield lambda: list(context.statusTracker().getJobIdsForGroup(group))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
