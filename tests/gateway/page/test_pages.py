"""The page, without Kafka and without a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from ackstream.gateway.page import pages, stories
from ackstream.gateway.page.live import FailureEntry, LabelTally, Live, View
from ackstream.gateway.page.pages import FILES
from ackstream.gateway.page.stories import TRACED, Happening, Stories, TracedRequest
from ackstream.observe.feeds import JobSign, Lag
from ackstream.observe.outcomes import VERDICTS, Count
from ackstream.observe.planes import DeadLetter, PlanesView
from ackstream.protocol.ditto.correlation_ids import Latest, wire_id
from ackstream.protocol.ditto.envelopes import raw
from ackstream.settings import Lake
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.parts import Web
from tests.harness.waiting import PATIENCE_SECONDS

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
NOTE = "The tables cannot be read: s3a://plant/lake is away."
FAILURES = [
    FailureEntry(f"of-{name}", thing_id, 424, "timeout", ["a:b"], 5, 6)
    for name, thing_id in (("door", "org.acme:door"), ("lamp", "org.acme:lamp"), ("nothing", None))
]


class Seen:
    """What a live thread would have seen, and nothing of the requests of a tenant."""

    live = mock.Mock(
        _lock=threading.Lock(), _own=Latest(9), _window=60_000, _note=NOTE,
        _labels=mock.Mock(failures=lambda: FAILURES),
    )  # fmt: skip

    @property
    def stories(self) -> Told:
        return Told(Lake(path="nowhere"))

    def view(self) -> View:
        counts = {how: Count(1, 2, 3, 4) for how in VERDICTS}
        tally = LabelTally("a:b", 1, 2, 3, 4, 5)
        trends = {how: [0, 1] for how in VERDICTS}
        return View(60_000, counts, 7, 8, 10, [tally], [tally], 1, 1, FAILURES, NOTE, 9, trends, [], None)

    def own(self, subjects: tuple[str, ...], may_see: Callable[[str | None], bool]) -> View:
        return Live.own(self.live, subjects, may_see)

    def whole(self) -> View:
        letter = DeadLetter("signals-0-7", 9, "no JSON", "signals", "k", "<secret>", 8)
        planes = PlanesView([], [], [], [], [letter], 0, {}, {"messages": [1]}, {"publishers": 9})
        job = JobSign("correlate", 5, alive=True, lags=[Lag("signals", "g", 3)])
        return replace(self.view(), planes=planes, jobs=[job])


class Told(Stories):
    """What memory has, and one message of the tables."""

    def remembered(self, correlation_id: str) -> list[Happening]:
        thing = None if correlation_id == "lost" else f"org.acme:{correlation_id}"
        happening = Happening(
            5, "request", "r", detail="twin", thing_id=thing, content=raw({"a": 1}), request=wire_id(correlation_id)
        )
        secret = Happening(6, "request", "s", thing_id="org.bank:safe", request=wire_id(correlation_id))
        return [happening, secret] if correlation_id == "door" else [happening]

    def remembered_trace(self, wanted: str) -> list[TracedRequest]:
        things = ("org.acme:door", "org.acme:lamp", None)
        return [
            TracedRequest(at, f"of-{at}", thing, "twin", f"00-{wanted}-00f067aa0ba902b7-01")
            for at, thing in enumerate(things * TRACED)
        ]

    def _read(self, question: str, values: dict[str, Any], things: Any, convert: Any) -> Any:
        if question == "message_story":
            return [Happening(5, "stored", "m-0-1", label=values["client"], detail="orders")], ""
        return super()._read(question, values, things, convert)


@pytest.fixture(autouse=True)
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: Any) -> None:
        raise OSError("s3a://plant/lake is away.")

    monkeypatch.setattr(stories, "rows", rows)


def web(**gateway: Any) -> Web:
    return Web(live=Seen(), **gateway)


def test_the_page_and_its_parts_come_from_here_alone() -> None:
    client = web()
    answer = client("GET", "//")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert {f"/page/{name}" for name in FILES} - {"/page/index.html"} <= set(named)
    for path in named:
        assert client("GET", f"/{path}").status_code == 200
    for name in FILES:
        text = client("GET", f"//page/{name}").text.replace('"http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|@import|url\(", text)
    assert client("GET", "//page/secret").status_code == 404
    assert client("GET", "//page/..%2Fapi.py").status_code == 404


def test_the_counts_are_one_json_document() -> None:
    view = web()("GET", "//live.json").json()
    assert view["counts"]["timed out"] == {"recent": 1, "total": 2, "p50": 3, "p95": 4}
    assert (view["in_flight"], view["oldest"], view["window"]) == (7, 8, 60_000)
    assert view["labels"] == [{"name": "a:b", "acknowledged": 1, "refused": 2, "missing": 3, "p50": 4, "p95": 5}]
    assert view["failures"][0]["missing"] == ["a:b"]
    lag = {"topic": "signals", "group": "g", "records": 3}
    assert view["jobs"] == [{"job": "correlate", "silent": 5, "alive": True, "lags": [lag]}]
    assert view["trends"]["answered"] == [0, 1]
    assert view["planes"]["dead_letters"][0]["content"] == "<secret>"
    assert view["planes"]["dead_letters"][0]["id"] == "signals-0-7"


def test_the_page_asks_for_what_the_document_has() -> None:
    view = web()("GET", "//live.json").json()
    script = web()("GET", "//page/live.js").text
    assert set(re.findall(r"\bview\.(\w+)", script)) <= view.keys()
    assert set(re.findall(r"\bplanes\.(\w+)", script)) <= view["planes"].keys()
    page = web()("GET", "//").text
    assert set(re.findall(r'byId\("([^"]+)"\)', script)) <= set(re.findall(r'id="([^"]+)"', page))


def test_a_story_is_found_by_its_correlation_id() -> None:
    story = web()("GET", "//story.json?correlation-id=lamp").json()
    assert story["happenings"] == [
        {"at": 5, "event": "request", "id": "r", "detail": "twin", "thing_id": "org.acme:lamp", "content": {"a": 1}}
    ]
    assert web()("GET", "//story.json").json()["error"] == "gateway:parameter.invalid"


def test_the_page_asks_for_one_thing_at_a_time() -> None:
    for query in ("correlation-id=door&correlation-id=lamp", "correlation-id=", "other=lamp"):
        assert web()("GET", f"//story.json?{query}").json()["error"] == "gateway:parameter.invalid"


_LIVE = """
const vm = require("vm");
const none = () => {};
const inner = (all, name) => name === "value" ? "" : name === Symbol.toPrimitive ? () => "" : element();
const element = () => new Proxy(none, { get: inner, apply: () => element(), set: () => true });
let asked = 0, shown = "";
const keep = (id) => (all, name, value) => { if (id === "story-id") shown = value; return true; };
const byId = (id) => new Proxy(none, { get: inner, set: keep(id) });
vm.runInNewContext(require("fs").readFileSync(process.argv[1], "utf8"), {
  document: { getElementById: byId, createElement: element, createElementNS: element, addEventListener: none },
  location: { hash: process.argv[2], origin: "http://localhost:8080" }, addEventListener: none, setTimeout: none,
  clearTimeout: none, encodeURIComponent, decodeURIComponent, fetch: async () => { asked++; return { ok: false }; },
});
console.log(`${asked} ${shown}`);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js runs the script")
@pytest.mark.parametrize(
    ("address", "found"),
    [("", "1"), ("#abc", "2 abc"), ("#100%25", "2 100%"), ("#100%", "2 100%"), ("#?message=a%zz", "2 a%zz")],
)
def test_the_page_shows_its_figures_whatever_its_address_names(address: str, found: str) -> None:
    script = Path(pages.__file__).with_name("live.js")
    given = ["node", "-e", _LIVE, str(script), address]
    done = subprocess.run(given, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.stdout.strip(), done.stderr) == (found, "")


@pytest.mark.parametrize(
    "path",
    [
        "//",
        "//live.json",
        "//story.json?correlation-id=x",
        "//message.json?message=x/1",
        f"//trace.json?trace-id={TRACE_ID}",
        "//doc",
        "//page/live.js",
    ],
)
def test_who_is_not_known_sees_nothing(path: str) -> None:
    assert web(users=USERS, access=ACCESS)("GET", path).status_code == 401


@pytest.mark.parametrize(("name", "seen"), [("admin", ["door", "lamp", "nothing"]), ("ada", ["door"]), ("bob", [])])
def test_failures_and_stories_are_those_of_things_one_may_read_entirely(name: str, seen: list[str]) -> None:
    client = web(users=USERS, access=ACCESS)
    failures = client("GET", "//live.json", **as_(name)).json()["failures"]
    assert [failure["correlation_id"] for failure in failures] == [f"of-{thing}" for thing in seen]
    for story in ("door", "lamp", "lost"):
        found = client("GET", f"//story.json?correlation-id={story}", **as_(name)).json()["happenings"]
        assert bool(found) is (story.replace("lost", "nothing") in seen)
        # another tenant has used the same id, which hides nothing and shows nothing
        assert ("s" in [line["id"] for line in found]) is (name == "admin" and story == "door")
        assert not any("request" in line for line in found)


@pytest.mark.parametrize(("name", "whole"), [("admin", True), ("ada", False), ("bob", False)])
def test_labels_planes_and_places_are_shown_to_those_alone_who_may_read_everything(name: str, whole: bool) -> None:  # noqa: FBT001
    client = web(users=USERS, access=ACCESS)
    view = client("GET", "//live.json", **as_(name)).json()
    for list_ in ("labels", "parties", "jobs", "planes"):
        assert bool(view[list_]) is whole
    for number in ("labels_in_all", "parties_in_all", "in_flight"):
        assert bool(view[number]) is whole
    notes = view["note"], client("GET", "//story.json?correlation-id=door", **as_(name)).json()["note"]
    assert all(notes)
    assert all((note == NOTE) is whole for note in notes)
    assert all("s3a:" in note for note in notes) is whole


@pytest.mark.parametrize(("name", "whole"), [("admin", True), ("ada", False), ("bob", False)])
def test_the_story_of_a_message_is_told_to_those_alone_who_may_read_everything(name: str, whole: bool) -> None:  # noqa: FBT001
    client = web(users=USERS, access=ACCESS)
    story = client("GET", "//message.json?message=orders/7", **as_(name)).json()
    told = {"at": 5, "event": "stored", "id": "m-0-1", "label": "orders", "detail": "orders"}
    assert story["happenings"] == ([told] if whole else [])


def test_a_message_is_named_by_its_publisher_and_number() -> None:
    assert web()("GET", "//message.json").status_code == 400
    refused = web()("GET", "//message.json?message=orders")
    assert refused.status_code == 400
    assert "CLIENT/SEQ" in refused.text


@pytest.mark.parametrize(("name", "things"), [("admin", 3), ("ada", 1), ("bob", 0)])
def test_the_requests_of_a_trace_are_those_of_things_one_may_read_entirely(name: str, things: int) -> None:
    client = web(users=USERS, access=ACCESS)
    found = client("GET", f"//trace.json?trace-id={TRACE_ID}", **as_(name)).json()
    assert (found["in_all"], len(found["requests"])) == (things * TRACED, min(things, 1) * TRACED)
    if name == "ada":
        assert {request["thing_id"] for request in found["requests"]} == {"org.acme:door"}
    assert (found["note"] == NOTE) is (name == "admin")


def test_a_trace_is_named_by_its_id_or_the_whole_header() -> None:
    whole = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
    assert web()("GET", f"//trace.json?trace-id={whole}").json()["of"] == TRACE_ID
    assert web()("GET", "//trace.json").status_code == 400
    refused = web()("GET", "//trace.json?trace-id=c-1")
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("The query parameter 'trace-id' is 'c-1': write its id, 32 hexadecimal")
