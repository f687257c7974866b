from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent.parent / "docs" / "testing.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_examples_of_the_page_run_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(compile(example, PAGE.name, "exec"), names)
    assert len(EXAMPLES) == 6
