from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from ackstream.errors import SettingsError, StartError
from ackstream.jobs.mirror.job import Mirror, named, part
from ackstream.local.submit import LOCAL_FILES
from ackstream.settings import Destination, Settings, load
from ackstream.spark import session

DESTINATIONS = json.dumps([{"name": name, "path": f"/{name}", "type": "sync"} for name in ("east", "west")])


@pytest.mark.parametrize(
    ("counts", "parts"), [([5], 1), ([50], 1), ([4, 6], 2), ([4, 6, 1], 2), ([50, 1], 1), ([0, 0, 10, 1], 3)]
)
def test_much_is_copied_in_parts_of_whole_batches(counts: list[int], parts: int) -> None:
    assert part(counts, 10) == parts


def test_a_destination_is_named_by_the_argument() -> None:
    settings = load(None, {"ACKSTREAM_DESTINATIONS": DESTINATIONS})
    assert named(settings, ["west"]).path == "/west"


@pytest.mark.parametrize(
    ("arguments", "destinations", "words"),
    [
        ([], DESTINATIONS, "submit mirror NAME`, where NAME is one of east, west"),
        (["north"], DESTINATIONS, "There is no destination 'north'"),
        (["east", "west"], DESTINATIONS, "one of east, west"),
        (["east"], "[]", "There are no destinations"),
    ],
)
def test_who_names_none_is_told_which_there_are(arguments: list[str], destinations: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        named(load(None, {"ACKSTREAM_DESTINATIONS": destinations}), arguments)


def test_a_destination_on_a_disk_without_hard_links_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {"spark.hadoop.fs.AbstractFileSystem.file.impl": LOCAL_FILES}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    monkeypatch.setattr(session, "local_directory", lambda _, name: Path(name))
    destination = Destination(name="far", path=str(tmp_path), type="sync")
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(errno.EPERM, "Operation not permitted")))
    with pytest.raises(StartError, match=rf"^destinations.path = {tmp_path} is on a disk without hard links"):
        Mirror(spark, Settings(), destination)
