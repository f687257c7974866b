from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.harness import waiting


def test_a_wait_that_fails_tells_what_was_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    names, query = (
        ["x" * 10_000, "y"],
        SimpleNamespace(isActive=True, lastProgress=SimpleNamespace(json='{"batchId":7}')),
    )
    with pytest.raises(
        AssertionError, match=r"a third name\. Seen last: False; names = \['x+\.\.\.x+', 'y'\]"
    ) as caught:
        waiting.eventually(lambda: len(names) > 2, "a third name", query)
    assert str(caught.value).endswith('; progress {"batchId":7}')
    assert len(str(caught.value)) < 1_000


def test_a_wait_that_fails_tells_what_a_method_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(AssertionError, match=r"^not within 0 s: an end\. Seen last: \[\]$"):
        waiting.eventually([].copy, "an end")
