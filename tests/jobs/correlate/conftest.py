"""The fixtures of tests that feed a shard."""

from __future__ import annotations

import pytest

from tests.jobs.correlate.shards import Log, Run


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def run() -> Run:
    return Run()
