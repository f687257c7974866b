"""The live page with its data; nothing is loaded from other hosts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError
from msgspec.structs import asdict, replace
from starlette.responses import Response
from starlette.routing import Route

from ackstream.errors import InputError
from ackstream.gateway.errors import not_found, parameter_invalid
from ackstream.gateway.middleware.instruments import KAFKA
from ackstream.kafka.clients import Closing
from ackstream.lake import questions, reading
from ackstream.observe.health import HEALTH
from ackstream.observe.journal import (
    FailureEntry,
    Happening,
    Journal,
    LabelTally,
    TracedRequest,
    in_order,
    stored,
    stored_trace,
    traced,
)
from ackstream.observe.meter import LedgerFeed, Meter, Snapshot, Verdict, epoch_milliseconds
from ackstream.observe.plane_feed import JobSign, PlaneWatch
from ackstream.observe.planes import PlanesView  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from starlette.requests import Request

    from ackstream.gateway.service import Dependencies
    from ackstream.protocol.ditto.access import Access
    from ackstream.settings import Settings


log = logging.getLogger(__name__)

CLOCK_SECONDS = 2.0
TALLY_MS = 1_000
"""How long computed counts are reused."""

STORIES = 2
"""As many are read from the tables at a time: each looks through several."""

TRACED = 100
"""Maximum number of requests of a trace shown."""

SHOWN = 15
"""Maximum number of labels and parties shown; a fleet may have thousands."""


class View(Snapshot, frozen=True):
    """The content of the page at one moment; durations and epoch times are in milliseconds.

    ``labels`` and ``parties`` are those with most failures; ``labels_in_all`` and ``parties_in_all`` count all of them.
    ``newest`` is the broker's time of the newest decision, ``trends`` those of ten minutes in bars of ten seconds.
    ``jobs`` and ``planes`` are for those who may read everything.
    """

    now: int
    labels: list[LabelTally]
    parties: list[LabelTally]
    labels_in_all: int
    parties_in_all: int
    failures: list[FailureEntry]
    note: str
    newest: int | None
    trends: dict[Verdict, list[int]]
    jobs: list[JobSign]
    planes: PlanesView | None


class Story(msgspec.Struct, frozen=True):
    """The history of a request or a message; ``note`` is set if the tables could not be read."""

    of: str
    happenings: list[Happening]
    note: str = ""


class Trace(msgspec.Struct, frozen=True):
    """The first requests of a trace, and how many there are; ``note`` is set if the tables could not be read."""

    of: str
    requests: list[TracedRequest]
    in_all: int
    note: str = ""


class Live(Closing):
    """Follows the ledger from one window before its start."""

    def __init__(self, settings: Settings) -> None:
        """Connect and start following.

        :raises AckstreamError: the broker is unavailable or a topic is missing
        """
        self._settings = settings
        window = settings.gateway.page_window
        self._meter = Meter(window)
        self._journal = Journal(window)
        self._lock = threading.Lock()
        self._note = ""
        self._view: View | None = None
        self._closing = threading.Event()
        self._feed = LedgerFeed(settings, epoch_milliseconds() - max(window, settings.correlate.default_timeout))
        self._planes = PlaneWatch(settings)
        self._thread = threading.Thread(target=self._run, name="ackstream-live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self._thread.join()
        self._planes.close()
        self._feed.close()

    def view(self) -> View:
        """Return the current content of the page."""
        now = epoch_milliseconds()
        with self._lock:
            if self._view is None or now - self._view.now >= TALLY_MS:
                labels, parties = self._journal.tallies(now), self._journal.tallies(now, parties=True)
                self._view = View(
                    **asdict(self._meter.snapshot(now)),
                    now=now,
                    labels=labels[:SHOWN],
                    parties=parties[:SHOWN],
                    labels_in_all=len(labels),
                    parties_in_all=len(parties),
                    failures=self._journal.failures(),
                    note=self._note,
                    newest=self._meter.newest,
                    trends=self._meter.trends(now),
                    jobs=[],
                    planes=None,
                )
            return self._view

    def whole(self) -> View:
        """Return the content of the page with all planes and jobs, for those who may read everything."""
        planes, jobs, note = self._planes.look()
        view = self.view()
        return replace(view, planes=planes, jobs=jobs, note=" ".join(filter(None, (view.note, note))))

    def message(self, argument: str) -> Story:
        """Return the history of a message, ``CLIENT/SEQ``, from the tables; reading these takes a moment.

        :raises InputError: it is not named like that
        """
        values = questions.parameters("message_story", argument)
        lake = self._settings.lake
        try:
            with reading.database(lake, questions.QUESTIONS["message_story"].tables) as connection:
                rows = questions.answer(connection, lake, "message_story", values).fetchall()
        except Exception as error:
            log.exception("The tables of %s cannot be read.", lake.path)
            return Story(argument, [], f"The tables cannot be read: {error}")
        return Story(argument, [_happened(*row) for row in rows])

    def story(self, correlation_id: str) -> Story:
        """Return the history of a request from memory and from the tables; reading these takes a moment."""
        with self._lock:
            remembered = self._journal.story(correlation_id)
        try:
            return Story(correlation_id, in_order([*remembered, *stored(self._settings.lake, correlation_id)]))
        except Exception as error:
            log.exception("The tables of %s cannot be read.", self._settings.lake.path)
            return Story(correlation_id, remembered, f"The tables cannot be read: {error}")

    def trace(self, wanted: str) -> Trace:
        """Return all requests of a trace from memory and from the tables, by its id; reading these takes a moment."""
        with self._lock:
            remembered = self._journal.trace(wanted)
        try:
            found = {*remembered, *traced(wanted, stored_trace(self._settings.lake, wanted))}
        except Exception as error:
            log.exception("The tables of %s cannot be read.", self._settings.lake.path)
            return Trace(wanted, remembered, len(remembered), f"The tables cannot be read: {error}")
        return Trace(wanted, sorted(found, key=lambda one: (one.at, one.correlation_id)), len(found))

    def _run(self) -> None:
        clock_at = 0.0
        while not self._closing.is_set():
            for record in self._feed.records():
                with self._lock:
                    self._meter.take(record.value, record.timestamp)
                    key = (record.key or b"").decode("utf-8", "replace")
                    self._journal.take(key, record.value or b"", record.timestamp)
            if time.monotonic() >= clock_at:
                try:
                    self._note = self._feed.warning()
                    HEALTH.beat(KAFKA, time.monotonic())
                except KafkaError as error:
                    self._note = f"Kafka does not respond: {error}"
                clock_at = time.monotonic() + CLOCK_SECONDS


def _happened(  # the columns of the question
    at: datetime, _step: int, event: str, party: str | None, place: str | None, detail: str | None, place_id: str | None
) -> Happening:
    words = " ".join(filter(None, (place, detail)))
    return Happening(round(at.timestamp() * 1000), event, place_id or "", label=party, detail=words)


FILES = {"index.html": "text/html", "style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def page_routes(dependencies: Dependencies) -> list[Route]:
    """Return the routes of the page and of its data; all require authentication."""
    access, slots = dependencies.access, asyncio.Semaphore(STORIES)

    async def identify(request: Request) -> tuple[str, ...]:
        return (await dependencies.admit(request)).subjects

    directory = Path(__file__).parent
    contents = {f"/page/{name}": ((directory / name).read_bytes(), media_type) for name, media_type in FILES.items()}
    contents["/"] = contents["/page/index.html"]

    async def content(request: Request) -> Response:
        await identify(request)
        found = contents.get(request.url.path)
        if found is None:
            raise not_found(request.url.path)
        return _response(*found)

    async def live(request: Request) -> Response:
        subjects = await identify(request)
        if _may_see(access, subjects, None):
            return _json(dependencies.live.whole())
        view = dependencies.live.view()
        failures = [failure for failure in view.failures if _may_see(access, subjects, failure.thing_id)]
        return _json(_without_others(replace(view, failures=failures)))

    async def story(request: Request) -> Response:
        subjects = await identify(request)
        wanted = _parameter(request, "correlation-id")
        with dependencies.limits.story(subjects[0]):
            async with slots:
                found = await asyncio.to_thread(dependencies.live.story, wanted)
        return _json(_seen(found, partial(_may_see, access, subjects)))

    async def trace(request: Request) -> Response:
        subjects = await identify(request)
        wanted = _asked(request, "trace", "trace-id")["trace_id"]
        with dependencies.limits.story(subjects[0]):
            async with slots:
                found = await asyncio.to_thread(dependencies.live.trace, wanted)
                # of thousands of requests this takes a moment, too
                found = await asyncio.to_thread(_of_those, found, partial(_may_see, access, subjects))
        return _json(found)

    async def message(request: Request) -> Response:
        subjects = await identify(request)
        wanted = _parameter(request, "message")
        if not _may_see(access, subjects, None):
            # as one that does not exist
            return _json(Story(wanted, []))
        _asked(request, "message_story", "message")
        with dependencies.limits.story(subjects[0]):
            async with slots:
                return _json(await asyncio.to_thread(dependencies.live.message, wanted))

    paths = ("/", "/page/{name}")
    data = {"/live.json": live, "/story.json": story, "/message.json": message, "/trace.json": trace}
    return [*(Route(path, content) for path in paths), *(Route(path, route) for path, route in data.items())]


def _parameter(request: Request, name: str) -> str:
    found = request.query_params.get(name)
    if not found:
        raise parameter_invalid(name, "is missing")
    return found


def _asked(request: Request, question: str, name: str) -> dict[str, Any]:
    """Return what a question is about, from a parameter of the URL."""
    try:
        return questions.parameters(question, _parameter(request, name))
    except InputError as error:
        # "The message is …", "The trace is …"
        raise parameter_invalid(name, str(error).split(" ", 2)[2].removesuffix(".")) from None


def _of_those(found: Trace, may_see: Callable[[str | None], bool]) -> Trace:
    """Return what someone may see of a trace."""
    note = "The tables cannot be read." if found.note and not may_see(None) else found.note
    seen = [request for request in found.requests if may_see(request.thing_id)]
    return replace(found, requests=seen[:TRACED], in_all=len(seen), note=note)


def _seen(found: Story, may_see: Callable[[str | None], bool]) -> Story:
    """Return what someone may see of a story: clients choose their ids, and others may have chosen the same."""
    if found.note and not may_see(None):
        found = replace(found, note="The tables cannot be read.")
    things: dict[str, set[str]] = {}
    for happening in found.happenings:
        named = things.setdefault(happening.request, set())
        if happening.thing_id is not None:
            named.add(happening.thing_id)
    seen = {request for request, named in things.items() if all(may_see(thing_id) for thing_id in named or (None,))}
    shown = [replace(happening, request="") for happening in found.happenings if happening.request in seen]
    return replace(found, happenings=shown)


def _without_others(view: View) -> View:
    """Return the view of those who may not read everything: without other parties, and without places."""
    note = "Something is wrong. Who may read all things sees what." if view.note else ""
    return replace(view, labels=[], parties=[], labels_in_all=0, parties_in_all=0, note=note)


def _may_see(access: Access, subjects: tuple[str, ...], thing_id: str | None) -> bool:
    """Return whether the subjects may see requests to a thing; without a thing, full read access is required."""
    if thing_id is None:
        return "*" in access.whole_things(subjects)
    return access.may("READ", subjects, thing_id, "/")


def _response(content: bytes, media_type: str) -> Response:
    return Response(content, headers=HEADERS, media_type=media_type)


def _json(value: object) -> Response:
    return _response(msgspec.json.encode(value), "application/json")
