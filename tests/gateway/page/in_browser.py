"""The live page in Chromium, while all planes have 2,000 records per second; `make page` runs it.

Chromium and axe-core have to be installed, so `make test` does not include it. The page reads Kafka alone: its records
are made here, as the jobs and clients write them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway.access.authentication import Authenticator, access_of
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.middleware.audit import Audit
from ackstream.gateway.page import live, pages, stories
from ackstream.gateway.server import Server
from ackstream.observe.feeds import JobSign, Lag
from ackstream.observe.outcomes import LedgerEntry, read_entry
from ackstream.protocol import ledger, messages, queues, readers
from ackstream.protocol.ditto.envelopes import raw
from ackstream.redriving.runs import RedriveReport
from ackstream.settings import Gateway, Settings
from tests.gateway.browser import Browser, chromium
from tests.gateway.parts import NO_CONTENT, Exchange
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

AXE = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""The SHA-256 of axe.min.js of axe-core 4.14.1, as npm has it."""

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
PER_SECOND = 2_000
"""Records of all planes together; a request has two of them."""

FRAME_MS, STALL_MS = 50, 200
"""The longest time between two frames, at the 95th percentile and at most: people see more as a stall."""

LABELS = ("fleet:accepted", "fleet:done", "erp:booked", "billing:charged", "twin-persisted")
JOBS = ("correlate", "archive", "twin", "persist", "settle", "queues")
PUBLISHERS = ("plant-berlin", "plant-lyon", "plant-turin", "warehouse", "shop")
QUEUES = ("packing", "paint", "orders")

# the settings refuse environment variables that they do not know
AXE_FILE = os.environ.pop("ACKSTREAM_TEST_AXE", None)
PICTURES = os.environ.pop("ACKSTREAM_TEST_PICTURES", None)
"""A directory for the pictures of the documentation, docs/pictures; all others are kept with the files of the test."""

PICTURED = {("desktop", "light"): ("live-page", "story"), ("phone", "dark"): ("live-page-phone", "readers-title")}
"""The names of those pictures, and where in the page each begins."""


class Traffic:
    """Records of all planes at a rate, as many at a call as have become due since the last one."""

    def __init__(self) -> None:
        self._began = {"ledger": time.time(), "planes": time.time()}
        self._number = {"ledger": 0, "planes": 0}
        self.given = 0

    def _due(self, plane: str) -> Iterator[int]:
        due = int((time.time() - self._began[plane]) * PER_SECOND / 2)
        for number in range(self._number[plane], due):
            self.given += 1
            yield number
        self._number[plane] = due

    def ledger(self, _timeout_ms: int) -> list[LedgerEntry]:
        found = [entry for number in self._due("ledger") for entry in [self._decided(number)] if entry is not None]
        time.sleep(0.01)
        return found

    def _decided(self, number: int) -> LedgerEntry | None:
        """Return the request of an even number, which has come some time ago, and its outcome for an odd one."""
        request, at = number // 2, time.time_ns() // 1_000_000
        name, thing = f"order-{request}", f"org.acme:lamp-{request % 400}"
        late, failed = request % 40 == 3, request % 60 == 11
        took = 2_000 if late else 8 + request % 90
        began, wanted = at - took, (LABELS[request % 5], LABELS[(request + 1) % 5])
        if number % 2 == 0:
            signal = ledger.SignalRow(
                name, thing, "twin", "commands", "modify", "/attributes/power", wanted, response_required=True,
                timeout_ms=2_000, headers={}, received_at=began, topic="signals", partition=0, offset=request,
                value=raw(request % 100),
            )  # fmt: skip
            return read_entry(name, ledger.encode(ledger.LedgerRecord("signal", f"r-{request}", "q", 1, signal)), at)
        if request % 50 == 7:
            # open for good
            return None
        statuses = {wanted[0]: 409 if failed else 200, wanted[1]: 408 if late else 200}
        acks = [
            _ack(name, label, status, began, 4 + request % 70 + 2 * part, 2 * request + part)
            for part, (label, status) in enumerate(statuses.items())
            if status != 408
        ]
        outcome = ledger.OutcomeRow(
            name, thing, 424 if late or failed else 200, "timeout" if late else "acknowledgements", wanted,
            [wanted[1]] if late else [], began, at, took, f"r-{request}", "replies",
            raw({label: {"status": status} for label, status in statuses.items()}),
        )  # fmt: skip
        record = ledger.LedgerRecord("outcome", f"r-{request}", "q", 1, acks=acks, outcome=outcome)
        return read_entry(name, ledger.encode(record), at)

    def planes(self, planes: Any) -> bool:
        for number in self._due("planes"):
            for topic, record in self._records(number):
                planes.take(topic, record)
        return False

    def _records(self, number: int) -> Iterator[tuple[str, Any]]:
        """Give the records of a number: of ten, four are publishers', three readers', two a queue's, one a change."""
        at = time.time_ns() // 1_000_000
        turn, step = number % 10, number // 10
        publisher, queue = PUBLISHERS[step % 5], QUEUES[step % 3]
        if turn < 4:
            # ten messages, those of a publisher without gaps
            first = 1 + 40 * (step // 5) + 10 * turn
            refused = ((first, first),) if number % 97 == 0 else ()
            stored = messages.StoredRange(publisher, first, first + 9, step, refused)
            yield "stored", _record(messages.write_stored(stored), at)
        elif turn < 7:
            yield from (("app-acks", _record(readers.write(one), at)) for one in _reports(turn - 4, publisher, step))
        elif turn < 9:
            yield from ((topic, _record(queues.write(one), at)) for topic, one in _of_queue(turn == 7, queue, step))
        else:
            yield "events", _record(b"{}", at)
            if step % 40 == 0:
                yield "dead-letters", _letter(step, queue, at)
            if step % 100 == 0:
                copied = messages.Replicated("archive-eu", "messages", max(0, step - 2))
                yield "destinations", _record(messages.write_replicated(copied), at)


def _reports(number: int, publisher: str, step: int) -> Iterator[Any]:
    """Give the reports of one of three readers, of which the later ones are further behind."""
    last = 40 * (step // 5 - number)
    if last > 0:
        name, role = (("ledger-copy", "Logger"), ("analytics", "Analyst"), ("alarm-screen", "Display"))[number]
        if step < 20:
            yield readers.ReaderStart(name, 1, role, durable=number < 2)
        before = readers.AckInterval(1, last - 40, reported=True)
        acked = (before, readers.AckInterval(last - 39, last)) if last > 40 else (readers.AckInterval(1, last),)
        yield readers.AppAck(name, publisher, 1, step, acked)


def _of_queue(delivers: bool, queue: str, step: int) -> Iterator[tuple[str, Any]]:  # noqa: FBT001
    """Give a delivery or the settlement of it; some are not settled."""
    who: dict[str, Any] = {"queue": queue, "consumer": f"worker-{step % 7}", "session": 1}
    if delivers:
        if step < 60:
            yield "app-acks", queues.Bind(**who)
        place = {"topic": "work", "partition": 0, "offset": step, "batch": 1}
        sent = queues.MessageDelivered(
            **who, **place, number=step, message=f"m-0-{step}", count=2 if step % 31 == 0 else 1
        )
        yield "queue-deliveries", sent
    elif step % 9:
        yield "app-acks", queues.SettleMessages(**who, messages=(f"m-0-{step}",))


def _ack(name: str, label: str, status: int, began: int, took: int, offset: int) -> ledger.AckRow:
    return ledger.AckRow(
        name, label, status, weak=False, received_at=began + took, latency_ms=took, disposition="accepted",
        topic="acks", partition=0, offset=offset, index=0,
    )  # fmt: skip


def _record(value: bytes, at: int, headers: tuple[tuple[str, bytes], ...] = (), key: bytes | None = None) -> Any:
    return SimpleNamespace(value=value, timestamp=at, headers=headers, key=key)


def _letter(step: int, queue: str, at: int) -> Any:
    if step % 80:
        headers = (("reason", f"Unknown header requested-ack (signals-2-{step})".encode()),)
        value = b'{"topic":"org.acme/lamp-7/things/twin/commands/modify","path":"/attributes/power","value":1}'
        return _record(value, at, headers, b"org.acme:lamp-7")
    place = f"messages-1-{step}".encode()
    headers = (("reason", b"max-deliveries"), ("queue", queue.encode()), ("message", place))
    return _record(b'{"order":4711,"colour":"red"}', at, headers, b"order-4711")


class Page:
    """A gateway whose records are made here, and its operator's actions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operators: list[str]) -> None:
        self.traffic, self.rows = Traffic(), list[Any]()
        self.calls: list[str] = []
        self._operators = operators
        feed = SimpleNamespace(
            records=self.traffic.ledger, signed_at=lambda: time.time_ns() // 1_000_000, close=lambda: None
        )
        planes = SimpleNamespace(give=self.traffic.planes, signs=_signs, outdated=False, close=lambda: None)
        monkeypatch.setattr(live, "LedgerFeed", lambda *_: feed)
        monkeypatch.setattr(live, "PlaneFeed", lambda *_: planes)
        monkeypatch.setattr(stories, "rows", lambda *_: [])
        monkeypatch.setattr(pages, "redrive", self._redrive)
        monkeypatch.setattr(pages, "delete_durable_subscription", lambda _kafka, *, name, **_: self._call(name))
        monkeypatch.setattr(pages, "drain_queue", lambda _kafka, *, queue, **_: self._call(queue) or 3)

    def __enter__(self) -> Self:
        settings = Settings(gateway=Gateway(port=0, operators=self._operators))
        authenticator = Authenticator(settings.gateway)
        exchange = Exchange(NO_CONTENT)
        exchange.cancel = lambda names: self._call(*names) or True  # type: ignore[attr-defined]
        exchange.interrupt = lambda: None  # type: ignore[attr-defined]
        self._live = live.Live(settings)
        audit = Audit("changes", self.rows.append)
        address = Future[str]()
        given: Any = (settings, authenticator, access_of(settings.gateway, authenticator), exchange, self._live, None)
        self._server = Server(Dependencies(*given, audit), address.set_result)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()))
        self._thread.start()
        self.url = address.result(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_SECONDS)
        self._live.close()

    def _redrive(self, _settings: Any, *, where: str) -> RedriveReport:
        self._call(where)
        return RedriveReport(chosen=1, redriven=1)

    def _call(self, *what: str) -> None:
        self.calls += what


def _signs() -> list[JobSign]:
    lags = {"correlate": [Lag("signals", "g", 12), Lag("acks", "g", 3)], "archive": [Lag("ledger", "g", 1_904)]}
    return [JobSign(job, 400 if job != "queues" else 61_000, job != "queues", lags.get(job, [])) for job in JOBS]


@pytest.fixture
def shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Page, Browser]]:
    assert chromium() is not None, "Chromium is not installed (Debian: chromium)."
    operators = getattr(request, "param", ["anonymous"])
    with Page(monkeypatch, operators) as page, Browser(tmp_path) as browser:
        _open(page, browser)
        yield page, browser
        assert browser.messages == []


def _open(page: Page, browser: Browser) -> None:
    browser.open(page.url + "/")
    browser.until("document.getElementById('state').textContent === 'live'")
    for plane in ("publishers", "readers", "queues", "jobs", "labels"):
        browser.until(f"document.querySelectorAll('#{plane} tbody td').length > 2")
    browser.until("document.querySelectorAll('#letters pre').length > 1")
    browser.until("document.querySelectorAll('#failures li').length > 10")


def _violations(browser: Browser) -> list[str]:
    """Return the violations that axe finds, each with the first element that has it."""
    browser.run("window.found = undefined; axe.run().then((result) => { window.found = result; }); 0")
    browser.until("window.found !== undefined")
    assert browser.run("found.passes.length") > 10
    shown = "`${one.id}: ${one.nodes[0].html} ${one.nodes[0].failureSummary}`"
    return list(browser.run(f"found.violations.map((one) => {shown})"))


def _axe() -> str:
    assert AXE_FILE is not None, "ACKSTREAM_TEST_AXE names no axe.min.js: `make page` installs it."
    file = Path(AXE_FILE).read_bytes()
    assert hashlib.sha256(file).hexdigest() == AXE
    return file.decode()


def _click(key: str) -> str:
    return f"document.querySelector('button[data-key^=\"{key}\"]').click()"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_wrong_and_nothing_is_wider_than_the_window(
    shown: tuple[Page, Browser], tmp_path: Path, size: str, scheme: str
) -> None:
    _, browser = shown
    browser.resize(*SIZES[size])
    browser.prefer(scheme)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 28)" if scheme == "dark" else "rgb(246, 247, 249)"
    )
    browser.run(_axe())
    states = {
        "all": "0",
        "story": "location.hash = latest.failures[0].correlation_id",
        "asked": _click("redrive"),
    }
    for name, begin in states.items():
        browser.run(begin)
        if name == "story":
            browser.until("document.querySelectorAll('#happenings li').length > 1")
        assert browser.run("document.documentElement.scrollWidth") <= SIZES[size][0]
        assert _violations(browser) == [], name
        browser.screenshot(tmp_path / f"{name}.png", whole=name != "asked")
    if PICTURES is not None and (size, scheme) in PICTURED:
        picture, begins = PICTURED[size, scheme]
        browser.run(f"document.getElementById('dialog').close(); document.getElementById('{begins}').scrollIntoView()")
        browser.until("!document.getElementById('dialog').open")
        browser.screenshot(Path(PICTURES) / f"{picture}.png", whole=False)


def test_an_operator_acts_by_keyboard_alone_and_nothing_is_done_before_it_is_confirmed(
    shown: tuple[Page, Browser],
) -> None:
    page, browser = shown
    focused = "document.activeElement?.dataset.key ?? document.activeElement?.id ?? ''"
    for _ in range(100):
        browser.press("Tab")
        if (key := browser.run(focused)).startswith("forget"):
            break
    assert key == "forget analytics" or key.startswith("forget ")
    # the page is rendered several times meanwhile, and the focus stays where it is
    rendered = browser.run("window.times = 0; const real = show; show = (view) => { times++; real(view); }; 0")
    assert rendered == 0
    browser.until("times > 1")
    assert browser.run(focused) == key
    browser.press("Enter")
    browser.until("document.getElementById('dialog').open")
    # the safe answer
    assert browser.run(focused) == "dialog-no"
    browser.press("Enter")
    browser.until("!document.getElementById('dialog').open")
    assert (page.calls, browser.run(focused)) == ([], key)
    browser.press("Enter")
    browser.until("document.getElementById('dialog').open")
    # the button is another element meanwhile
    browser.run("document.querySelector('#readers').replaceChildren(); times = 0")
    browser.until("times > 0 && document.querySelector('#readers button') !== null")
    browser.press("Escape")
    browser.until("!document.getElementById('dialog').open")
    assert (page.calls, browser.run(focused)) == ([], key)
    browser.press("Enter")
    browser.press("Tab")
    browser.until(f"({focused}) === 'dialog-yes'")
    browser.press("Enter")
    browser.until("document.getElementById('dialog-result').textContent.includes('is removed')")
    assert page.calls == [key.removeprefix("forget ")]
    (row,) = page.rows
    assert (row.command, row.path, row.subject, row.allowed) == (
        "gateway/actions/forget", page.calls[0], "anonymous", True
    )  # fmt: skip


def test_a_queue_is_drained_after_a_confirmation(shown: tuple[Page, Browser]) -> None:
    page, browser = shown
    rows = "document.querySelectorAll('#queues tbody tr').length"
    assert browser.run("document.querySelectorAll('#queues button.act').length") == browser.run(rows)
    browser.run(_click("drain paint"))
    assert page.calls == []
    browser.run("document.getElementById('dialog-yes').click()")
    browser.until("document.getElementById('dialog-result').textContent.includes('given up: 3')")
    assert page.calls == ["paint"]


def test_a_dead_letter_and_an_open_request_have_their_actions(shown: tuple[Page, Browser]) -> None:
    page, browser = shown
    ids = browser.run("latest.planes.dead_letters.map((one) => one.id)")
    assert all(ids)
    browser.run(_click(f"redrive {ids[-1]}"))
    browser.run("document.getElementById('dialog-yes').click()")
    browser.until("document.getElementById('dialog-result').textContent.includes('sent again')")
    assert page.calls == [f"id = '{ids[-1]}'"]
    browser.run("document.getElementById('dialog').close()")
    browser.until("document.activeElement.dataset.key?.startsWith('redrive')")
    browser.run("location.hash = 'order-7'")
    browser.until("document.querySelector('#story-act button')?.textContent === 'Cancel request'")
    assert browser.run("document.activeElement.id") == "story-title"
    browser.run("document.querySelector('#story-act button').click()")
    browser.run("document.getElementById('dialog-yes').click()")
    browser.until("document.getElementById('dialog-result').textContent.includes('499')")
    # a decided request has nothing to cancel
    browser.run("document.getElementById('dialog').close(); location.hash = latest.failures[0].correlation_id")
    browser.until("document.querySelectorAll('#happenings li').length > 1")
    assert browser.run("document.querySelectorAll('#story-act button').length") == 0


@pytest.mark.parametrize("shown", [[]], indirect=True)
def test_who_is_no_operator_has_no_actions(shown: tuple[Page, Browser]) -> None:
    _, browser = shown
    assert browser.run("document.querySelectorAll('button.act').length") == 0


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.parametrize("burst", [0, 100], ids=["polled", "pushed"])
def test_the_page_does_not_stall_at_2000_updates_per_second(
    shown: tuple[Page, Browser], tmp_path: Path, burst: int
) -> None:
    """The records change the page's data, or the data come as often as the records do (``burst`` each 50 ms)."""
    page, browser = shown
    browser.run("""
      window.frames = []; window.rendered = 0; let last = performance.now();
      const real = show; show = (view) => { rendered++; real(view); };
      const tick = (now) => { frames.push(now - last); last = now; requestAnimationFrame(tick); };
      requestAnimationFrame(tick); 0
    """)
    if burst:
        browser.run(f"""
          window.updates = 0;
          setInterval(() => {{ for (let n = 0; n < {burst}; n++) {{
            latest = {{ ...latest, in_flight: updates, now: latest.now + 1 }}; updates++; paint();
          }} }}, 50); 0
        """)
    began, before = time.monotonic(), page.traffic.given
    browser.run("frames.length = 0")
    browser.until("frames.length >= 300")
    rate = (page.traffic.given - before) / (time.monotonic() - began)
    frames = browser.run("frames")
    figures = {"records per second": rate, "p95 ms": _percentile(frames, 0.95), "longest ms": max(frames)}
    if burst:
        figures |= {"updates": browser.run("updates"), "rendered": browser.run("rendered")}
        assert figures["updates"] > 10 * figures["rendered"]
    tmp_path.joinpath("frames.json").write_text(json.dumps(figures), "utf-8")
    assert rate > 0.8 * PER_SECOND, figures
    assert figures["p95 ms"] <= FRAME_MS, figures
    assert figures["longest ms"] <= STALL_MS, figures
