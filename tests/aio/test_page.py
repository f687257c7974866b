from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.aio import memory

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parent.parent.parent / "docs/guides/asyncio.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_examples_of_the_page_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.play(monkeypatch)
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(compile(example, PAGE.name, "exec"), names)
    assert len(EXAMPLES) == 5
