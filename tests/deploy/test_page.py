"""What docs/operate/deployment.md shows is what there is: commands, settings, files, units, objects, versions."""

from __future__ import annotations

import re
import shlex
from operator import attrgetter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from ackstream.local.machine import NEWEST, OLDEST
from ackstream.settings import Settings
from tests.deploy.product import DEPLOY, ROOT, check_command, settings

PAGE = (ROOT / "docs/operate/deployment.md").read_text("utf-8")
BLOCKS = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", PAGE)
SHELL = "".join(text for language, text in BLOCKS if not language).replace("\\\n", " ")
COMMANDS = re.findall(r"(?m)^(?:\w+=\S+ )?(?:ackstream|docker run --rm ackstream:\S+) (.+)$", SHELL)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one_of_the_product(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "--version":
        return
    # the option of all commands stands before the command
    check_command(words[2:] if words[0] == "--settings" else words)


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) > 7


@pytest.mark.parametrize("text", [text for language, text in BLOCKS if language == "toml"])
def test_settings_are_those_of_the_product(text: str, tmp_path: Path) -> None:
    (tmp_path / "ackstream.toml").write_text(text, "utf-8")
    settings({}, tmp_path / "ackstream.toml")


def test_a_key_that_the_page_names_exists() -> None:
    parts = "|".join(Settings.model_fields)
    keys = set(re.findall(rf"`((?:{parts})\.[a-z_.]+)`", PAGE))
    # others are Spark's own
    keys = {key for key in keys if not re.match(r".*\.yaml$|spark\.(?!master|driver_memory|conf)", key)}
    assert keys
    for key in keys:
        attrgetter(key)(Settings())


def test_a_path_of_the_repository_that_the_page_names_exists() -> None:
    named = set(re.findall(r"(?<![\w/.])((?:deploy|requirements|conf|benchmarks|tests)/[\w./*-]+\w)", PAGE))
    assert named
    assert not {name for name in named if not (ROOT / name.removesuffix("/*")).exists()}


def test_a_page_and_a_heading_that_a_file_names_exist() -> None:
    files = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    text = "".join(path.read_text("utf-8") for path in files)
    named = set(re.findall(r'(?:see "([^"]+)" in )?(docs/[\w/-]+\.md)', text))
    assert {heading for heading, _ in named} >= {"Tables", "A standby"}
    for heading, page in named:
        headings = re.findall(r"(?m)^##+ (.+)$", (ROOT / page).read_text("utf-8"))
        assert heading in ["", *headings], page


def test_every_unit_and_object_has_its_row() -> None:
    rows = re.findall(r"(?m)^\| (.+?) \|", PAGE)
    for unit in (DEPLOY / "systemd").iterdir():
        if unit.name != "ackstream-maintain.service":
            # which its timer starts
            assert any(f"`{unit.name.replace('@', '@JOB')}`" in row for row in rows), unit.name
    for name in ("correlate.yaml", "tables.yaml", "gateway.yaml", "lake.yaml"):
        for found in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text("utf-8")):
            if found["kind"] in ("StatefulSet", "Deployment", "CronJob"):
                assert f"{found['kind']} `{found['metadata']['name']}`" in rows


def test_the_versions_are_those_that_are_pinned() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    revisions = {one.get("name"): one.get("rev") for one in ET.parse(ROOT / "conf/ivy.xml").iter("dependency")}
    table = PAGE[PAGE.index("## What fits together") :]
    for package in ("pyspark", "delta-spark"):
        (version,) = re.findall(rf'"{package}==([\d.]+)"', project)
        assert version in table
    assert f"kafka-clients {revisions['kafka-clients']}" in table
    assert f"{revisions['kafka_2.13']} with KRaft" in table
    assert f"{OLDEST} to {NEWEST}" in table
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    assert f"{pythons[0]} to {pythons[-1]}" in table
    (oldest,) = re.findall(r"kafka-python\[.*?]>=([\d.]+),<3\.1", project)
    assert f"kafka-python {oldest}" in table
