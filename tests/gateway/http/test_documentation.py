"""The page of the API's documentation, without Kafka and without a browser."""

from __future__ import annotations

import gzip
import hashlib
import re

import pytest

from ackstream.gateway.page.pages import VIEWER
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.parts import Web

PARTS = ("start.js", "swagger-ui-bundle.js", "swagger-ui.css", "openapi.json")
PUBLISHED = {
    "swagger-ui-bundle.js": "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
}
"""The SHA-256 of the files of swagger-ui-dist 5.35.0, as npm has it."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_viewer_is_the_one_that_was_published(name: str) -> None:
    content = gzip.decompress((VIEWER / f"{name}.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == PUBLISHED[name]


def test_the_page_and_its_parts_come_from_here_alone() -> None:
    client = Web()
    answer = client("GET", "//doc")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    named = re.findall(r"(?:src|href)='([^']+)'", answer.text)
    assert set(named) == {"/page/icon.svg", *(f"/doc/{name}" for name in PARTS)}
    assert not re.search(r"https?:", answer.text + client("GET", "//doc/start.js").text)
    for path in named:
        assert client("GET", f"/{path}").status_code == 200
    assert client("GET", "//doc/secret").status_code == 404


def test_no_script_but_those_of_the_gateway_may_run() -> None:
    answer = Web()("GET", "//doc")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert "script-src" not in policy
    assert not re.search(r"<script>|<script [^>]*>[^<]|\son\w+=", answer.text)


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip, br", "gzip"), ("br;q=1, gzip;q=0.5", "gzip"), ("*", "gzip"), ("identity", None), ("gzip;q=0", None)],
)
def test_a_client_that_takes_no_gzip_gets_plain_text(accepted: str, coding: str | None) -> None:
    answer = Web()("GET", "//doc/openapi.json", headers={"accept-encoding": accepted})
    assert (answer.headers.get("content-encoding"), answer.headers["vary"]) == (coding, "accept-encoding")
    assert answer.json()["openapi"].startswith("3.")


def test_what_the_browser_has_is_not_sent_again() -> None:
    client = Web()
    tag = client("GET", "//doc/swagger-ui-bundle.js").headers["etag"]
    again = client("GET", "//doc/swagger-ui-bundle.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["//doc", *(f"//doc/{name}" for name in PARTS)])
def test_who_is_not_known_sees_nothing(path: str) -> None:
    client = Web(users=USERS, access=ACCESS)
    assert client("GET", path).status_code == 401
    assert client("GET", path, **as_("ada")).status_code == 200
