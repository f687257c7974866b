"""The package keeps its size and its language: budgets of lines and modules, circles, names, signatures, dialect."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import house

SHORT: dict[str, str] = {
    "__init__.py": "names of a package",
    "__main__.py": "an entry point",
    "client/__init__.py": "names of a package",
    "client/core/tracing.py": "all that knows the extra tracing",
    "dataframe/__init__.py": "names of a package",
    "gateway/errors.py": "errors of the gateway, by the names of its catalogue",
    "redriving/__init__.py": "names of a package",
    "settings/__init__.py": "names of a package",
    "testing/__init__.py": "names of a package",
}
"""Modules with fewer than 120 lines, and why each is one."""

LONG: dict[str, str] = {
    "jobs/queues/queue.py": "all rules of a queue, in one class",
}
"""Modules with more than 350 lines, and why each is one."""

FULL_FLOORS: dict[str, str] = {}
"""Directories with more than 12 modules, and why."""

RATES = {
    "what for a noun": 0.1,
    "programs that talk": 0.1,
    "nobody, everybody": 0.0,
    "so much, so long": 0.0,
    "is none": 0.0,
    "Of a …": 0.0,
}
"""The most that each marker may stand in 1,000 words. They only go down."""

SIZES = {path.relative_to(house.PACKAGE).as_posix(): house.lines(path) for path in house.modules()}


@pytest.mark.parametrize("package", house.BUDGETS, ids=lambda package: package or "top")
def test_a_package_keeps_its_budget_of_lines_and_modules(package: str) -> None:
    lines, modules = house.BUDGETS[package]
    assert sum(house.lines(path) for path in house.FILES if house.package(path) == package) <= lines
    assert len([path for path in house.modules() if house.package(path) == package]) <= modules


def test_every_package_has_a_budget_and_the_sum_is_that_of_the_house() -> None:
    assert {house.package(path) for path in house.FILES} == house.BUDGETS.keys()
    assert sum(lines for lines, _ in house.BUDGETS.values()) <= house.LINES
    assert sum(modules for _, modules in house.BUDGETS.values()) <= house.MODULES


def test_the_packages_that_a_newcomer_opens_keep_their_budget() -> None:
    opened = [
        path
        for path in house.FILES
        if house.package(path) in house.CORE
        and not path.relative_to(house.PACKAGE).as_posix().startswith(house.QUERY_PLANE)
    ]
    assert sum(map(house.lines, opened)) <= house.CORE_LINES


def test_a_module_has_between_120_and_350_lines_or_a_reason() -> None:
    assert {name for name, size in SIZES.items() if size < house.SHORTEST} == SHORT.keys()
    assert {name for name, size in SIZES.items() if size > house.LONGEST} == LONG.keys()


def test_a_directory_has_at_most_12_modules_or_a_reason() -> None:
    floors = Counter(name.rpartition("/")[0] for name in SIZES if not name.endswith("__init__.py"))
    assert {floor for floor, count in floors.items() if count > house.FLOOR} == FULL_FLOORS.keys()


def test_no_modules_import_each_other_not_even_for_annotations() -> None:
    assert house.circles() == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert {name: paths for name, paths in house.public_classes().items() if len(paths) > 1} == {}


def test_a_function_has_at_most_8_parameters() -> None:
    assert house.long_signatures() == {}


@pytest.mark.parametrize("marker", house.DIALECT)
def test_a_marker_of_dialect_is_not_more_frequent_than_before(marker: str) -> None:
    assert round(house.dialect(house.FILES)[marker], 1) <= RATES[marker]
