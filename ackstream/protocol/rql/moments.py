"""The ``time:`` placeholder: ``now`` or ``now_epoch_millis``, moved by a duration, cut to a unit (``now-1h[d]``).

Source of the rule: Eclipse Ditto, ``ImmutableTimePlaceholder``.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError

_FORM = re.compile(
    r"time:now(?P<millis>_epoch_millis)?(?:(?P<sign>[+-])(?P<duration>[^\[\]]*))?(?:\[(?P<unit>ms|s|m|h|d|w|mo|y|)\])?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def resolve(text: str, now: datetime) -> str | None:
    """Give the text a ``time:`` placeholder stands for at ``now`` (with a time zone), None when it means nothing.

    The answer is a text in both forms: ISO 8601 in UTC, or decimal epoch milliseconds. Weeks begin on Monday.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        return None
    moment = now.astimezone(timezone.utc)
    try:
        if form["sign"]:
            distance = timedelta(milliseconds=Duration.parse(form["duration"]).milliseconds)
            moment = moment + distance if form["sign"] == "+" else moment - distance
    except (DittoError, ValueError, OverflowError):
        return None
    if form["unit"] is not None:
        moment = _cut(moment, form["unit"])
    return str((moment - _EPOCH) // timedelta(milliseconds=1)) if form["millis"] else _iso(moment)


def _cut(moment: datetime, unit: str) -> datetime:  # noqa: PLR0911 - one return a unit
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    match unit:
        case "ms":
            return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        case "m":
            return moment.replace(second=0, microsecond=0)
        case "h":
            return moment.replace(minute=0, second=0, microsecond=0)
        case "d":
            return day
        case "w":
            return day - timedelta(days=day.weekday())
        case "mo":
            return day.replace(day=1)
        case "y":
            return day.replace(month=1, day=1)
        case _:
            return moment.replace(microsecond=0)


def _iso(moment: datetime) -> str:
    # Java prints no, three or six digits of a second; texts are compared, so it matters
    micros = moment.microsecond
    precision = "seconds" if not micros else "microseconds" if micros % 1000 else "milliseconds"
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
