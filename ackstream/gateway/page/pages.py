"""The live page with its data and actions, and ``/doc``, the API's documentation; all files come from this host."""

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ackstream.client import delete_durable_subscription, drain_queue
from ackstream.errors import AckstreamError, InputError
from ackstream.gateway import errors
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.http.api import read_body
from ackstream.gateway.http.translation import check_parameters
from ackstream.gateway.middleware.audit import Sender
from ackstream.gateway.page.stories import Stories, Story, Trace, may_see
from ackstream.protocol.errors import AccessDeniedError, json_invalid
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.rql.patterns import matches_any
from ackstream.redriving import redrive

log = logging.getLogger(__name__)

Answer = Callable[[Request], Awaitable[Response]]

STORIES = 2
"""Reads of the tables at a time: each searches several tables."""

_HERE = Path(__file__).parent
FILES = ("index.html", "style.css", "live.js", "icon.svg")
DOCUMENT = _HERE / "openapi.json"
"""The OpenAPI document of all routes, which ``python -m tests.reference`` writes."""

VIEWER = _HERE / "swagger-ui"
"""Swagger UI, as it is published; its large files are compressed."""

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "json": "application/json"}
"""Media types by the end of a path; all others are HTML."""

HEADERS = {
    # the viewer has its icons in its style sheet
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    # the browser revalidates each time
    "cache-control": "private, no-cache",
}


class ActionOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order of an operator; ``of``: the id of a dead letter, a correlation-id, or a reader's or queue's name."""

    action: Literal["redrive", "cancel", "forget", "drain"]
    of: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024, pattern=r"^[^\x00-\x1f\x7f]+$")]


def page_routes(dependencies: Dependencies) -> list[Route]:
    """Return the routes of the page, of its data and of the documentation; all require authentication."""
    access, admit, slots = dependencies.access, dependencies.admission.admit, asyncio.Semaphore(STORIES)
    operators = dependencies.settings.gateway.operators

    def may_act(subjects: tuple[str, ...]) -> bool:
        named = any(matches_any(operators, subject) for subject in subjects)
        return named and may_see(access.whole_things(subjects), None)

    async def live(request: Request) -> Response:
        subjects = (await admit(request)).subjects
        if may_see(access.whole_things(subjects), None):
            return _json(replace(dependencies.live.whole(), may_act=may_act(subjects)))
        return _json(dependencies.live.own(subjects, lambda one: may_see(access.whole_things(subjects), one)))

    def told(name: str, tell: Callable[[Stories, str, tuple[str, ...]], Story | Trace]) -> Answer:
        async def route(request: Request) -> Response:
            subjects = (await admit(request)).subjects
            check_parameters(request.query_params, (name,), headers=False)
            if not (wanted := request.query_params.get(name)):
                raise errors.parameter_invalid(name, "is missing")
            things = access.whole_things(subjects)
            with dependencies.admission.limits.story(subjects[0]):
                async with slots:
                    try:
                        # an answer may have megabytes
                        return await asyncio.to_thread(lambda: _json(tell(dependencies.live.stories, wanted, things)))
                    except InputError as error:
                        # "The message is …", "The trace is …"
                        raise errors.parameter_invalid(name, str(error).split(" ", 2)[2].removesuffix(".")) from None

        return route

    found = {
        **dict.fromkeys(("/", "/page/{name}", "/doc", "/doc/openapi.json", "/doc/{name}"), _files(dependencies)),
        "/live.json": live,
        "/story.json": told("correlation-id", Stories.story),
        "/message.json": told("message", Stories.message),
        "/trace.json": told("trace-id", Stories.trace),
    }
    acting = Route("/actions", _acting(dependencies, may_act), methods=["POST"])
    return [*(Route(path, route) for path, route in found.items()), acting]


def _acting(dependencies: Dependencies, may_act: Callable[[tuple[str, ...]], bool]) -> Answer:
    turn = asyncio.Lock()

    async def act(request: Request) -> Response:
        subjects = (await dependencies.admission.admit(request)).subjects
        try:
            order = msgspec.json.decode(await read_body(dependencies, request, only_json=True), type=ActionOrder)
        except UNREADABLE as error:
            raise json_invalid(f"The body is no action: {error}.") from error
        except ClientDisconnect:
            return Response()
        with dependencies.audit.action(Sender.of(request, subjects), order.action, order.of):
            if not may_act(subjects):
                raise AccessDeniedError(errors.action_not_allowed(order.action), "gateway.operators")
            # a second run of redrive would end the first
            async with turn:
                try:
                    result = await asyncio.to_thread(_ACTIONS[order.action], dependencies, order.of)
                except AckstreamError as error:
                    raise errors.action_failed(str(error)) from error
        log.info("The operator %s: %s of %r. %s", subjects[0], order.action, order.of, result)
        return _json({"action": order.action, "of": order.of, "result": result})

    return act


def _redrive(parts: Dependencies, letter: str) -> str:
    quoted = letter.replace("'", "''")
    report = redrive(parts.settings, where=f"id = '{quoted}'")
    if not report.chosen:
        raise InputError("The tables do not have this dead letter, which reaches them some seconds after the page.")
    if report.earlier:
        raise InputError("The dead letter was sent again before.")
    if not report.redriven:
        raise InputError("The dead letter cannot be sent again: docs/operate/recovery.md has the reasons.")
    return "The record was sent again, with the header redriven-from."


def _cancel(parts: Dependencies, correlation_id: str) -> str:
    if not parts.exchange.cancel({one.request for one in parts.live.stories.remembered(correlation_id)}):
        raise InputError("The request is not open, or not sent by this gateway: its sender alone can cancel it.")
    return "The cancellation was sent: the request ends with the status 499, unless it was decided before."


def _forget(parts: Dependencies, reader: str) -> str:
    # a gateway that stops waits for it
    delete_durable_subscription(parts.settings.kafka, name=reader, timeout=15.0)
    return "The reader is removed: publishers no longer wait for it."


def _drain(parts: Dependencies, queue: str) -> str:
    number = drain_queue(parts.settings.kafka, queue=queue, timeout=15.0)
    return f"The queue is drained; messages given up: {number:,}."


_ACTIONS: dict[str, Callable[[Dependencies, str], str]] = {
    "redrive": _redrive,
    "cancel": _cancel,
    "forget": _forget,
    "drain": _drain,
}


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), 200, {"cache-control": "no-store"}, "application/json")


@cache
def _contents() -> dict[str, tuple[bytes, str]]:
    """Return the files by their paths, compressed, each with its entity tag."""
    files = {f"/page/{name}": _HERE / name for name in FILES} | {
        "/": _HERE / "index.html",
        "/doc": VIEWER / "index.html",
        "/doc/start.js": VIEWER / "start.js",
        "/doc/swagger-ui-bundle.js": VIEWER / "swagger-ui-bundle.js.gz",
        "/doc/swagger-ui.css": VIEWER / "swagger-ui.css.gz",
        "/doc/openapi.json": DOCUMENT,
    }
    read = {path: (file.read_bytes(), file.suffix == ".gz") for path, file in files.items()}
    contents = {
        path: content if packed else gzip.compress(content, mtime=0) for path, (content, packed) in read.items()
    }
    return {path: (content, f'"{sha256(content).hexdigest()[:16]}"') for path, content in contents.items()}


def _files(dependencies: Dependencies) -> Answer:
    contents = _contents()

    async def answer(request: Request) -> Response:
        await dependencies.admission.admit(request)
        path = request.url.path
        if path not in contents:
            raise errors.not_found(path)
        content, tag = contents[path]
        headers = HEADERS | {"etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(None, 304, headers)
        if _takes_gzip(request):
            headers |= {"content-encoding": "gzip"}
        else:
            content = gzip.decompress(content)
        media_type = _TYPES.get(path.rpartition(".")[2], "text/html")
        return Response(content, headers=headers | {"vary": "accept-encoding"}, media_type=media_type)

    return answer


def _takes_gzip(request: Request) -> bool:
    for coding in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = coding.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "").rstrip("0.") != "q="
    return False
