"""RQL filters as conditions on rows of ``things``: the same evaluation as everywhere, in Spark's Python workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.protocol.rql import check, matches, parse

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


def fits(filter_: str, now: datetime) -> Column:
    """Return a filter as a condition; a thing that was deleted fits none.

    :param now: what ``time:now`` means, with its time zone
    :raises DittoError: 400; the filter is not one
    """
    tree = parse(filter_)
    check(tree)

    def evaluate(thing: str | None, revision: int, created: str, modified: str) -> bool:
        if thing is None:
            return False
        whole = {**msgspec.json.decode(thing), "_revision": revision, "_created": created, "_modified": modified}
        return matches(tree, whole, time=now)

    # the session's time zone is UTC
    times = [F.date_format(name, _TIME) for name in ("created_at", "modified_at")]
    condition: Column = F.udf(evaluate, "boolean", useArrow=True)("thing", "revision", *times)
    return condition
