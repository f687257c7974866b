"""Sessions of Spark, and a JVM, with settings that a site or an analyst chooses: no stored value depends on them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

LOCALE = "locale"
SETTINGS = [
    ("spark.sql.session.timeZone", "Asia/Tokyo"),
    ("spark.sql.session.timeZone", "America/Los_Angeles"),
    ("spark.sql.ansi.enabled", "false"),
    ("spark.sql.caseSensitive", "true"),
    ("spark.sql.legacy.timeParserPolicy", "LEGACY"),
    # other rules for the case of letters
    (LOCALE, "tr-TR"),
]
"""Entries of a session, and locales of the JVM."""


@contextmanager
def other_session(spark: SparkSession, key: str, value: str) -> Iterator[SparkSession]:
    """Return a session with one of :data:`SETTINGS`; the locale is that of the whole JVM until the block ends."""
    session, locale = spark.newSession(), spark._jvm.java.util.Locale
    before = locale.getDefault()
    if key == LOCALE:
        locale.setDefault(locale.forLanguageTag(value))
    else:
        session.conf.set(key, value)
    try:
        yield session
    finally:
        locale.setDefault(before)
