from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream import client
from ackstream.testing import RequestSystem
from tests.harness import pages

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parent.parent.parent / "docs/guides/testing.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_examples_of_the_page_run_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(compile(example, PAGE.name, "exec"), names)
    assert len(EXAMPLES) == 6


def test_the_examples_of_the_guide_to_requests_run_in_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for example in pages.examples("docs/guides/send-a-command.md"):
        system = RequestSystem()
        monkeypatch.setattr(client, "Requester", lambda _, system=system: system.requester())
        monkeypatch.setattr(client, "Responder", lambda _, system=system, **options: system.responder(**options))
        exec(compile(example, "docs", "exec"), {})
    told = capsys.readouterr().out
    assert "lamp:switched 200 {'watts': 7}\nmissing: ()" in told
    assert "org.acme:lamp-99 408 ('lamp:switched',)" in told
    assert "200 {'celsius': 21}" in told
