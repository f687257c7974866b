"""The programs that tests start as processes of their own are texts: no tool looks into them, this test does."""

from __future__ import annotations

import ast
import importlib

import pytest

from tests.harness import programs

PROGRAMS = {name: text for name, text in vars(programs).items() if name.isupper()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_imports_exists(name: str) -> None:
    imports = [node for node in ast.parse(PROGRAMS[name]).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    for node in imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
            continue
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")
