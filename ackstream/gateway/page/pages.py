"""The live page and ``/doc``, the API documentation with a form for each operation; no host but this serves a file."""

from __future__ import annotations

import asyncio
import gzip
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from starlette.responses import Response
from starlette.routing import Route

from ackstream.errors import InputError
from ackstream.gateway.errors import not_found, parameter_invalid
from ackstream.gateway.http.translation import check_parameters
from ackstream.gateway.page.stories import Story, Trace
from ackstream.lake import questions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from ackstream.gateway.exchange import Dependencies
    from ackstream.protocol.ditto.twin.access import Access


STORIES = 2
"""As many are read from the tables at a time: each looks through several."""

TRACED = 100
"""Maximum number of requests of a trace shown."""

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
    # the browser asks each time whether it has changed
    "cache-control": "private, no-cache",
}


def page_routes(dependencies: Dependencies) -> list[Route]:
    """Return the routes of the page, of its data and of the documentation; all require authentication."""
    access, admit, slots = dependencies.access, dependencies.admission.admit, asyncio.Semaphore(STORIES)

    async def live(request: Request) -> Response:
        subjects = (await admit(request)).subjects
        if _may_see(access, subjects, None):
            return _json(dependencies.live.whole())
        return _json(dependencies.live.own(subjects, partial(_may_see, access, subjects)))

    async def read(subjects: tuple[str, ...], question: Callable[[], Story | Trace]) -> Response:
        with dependencies.admission.limits.story(subjects[0]):
            async with slots:
                return _json(await asyncio.to_thread(question))

    async def story(request: Request) -> Response:
        subjects = (await admit(request)).subjects
        wanted, may_see = _parameter(request, "correlation-id"), partial(_may_see, access, subjects)
        return await read(subjects, lambda: _seen(dependencies.live.stories.story(wanted), may_see))

    async def trace(request: Request) -> Response:
        subjects = (await admit(request)).subjects
        wanted, may_see = _asked(request, "trace", "trace-id")["trace_id"], partial(_may_see, access, subjects)
        return await read(subjects, lambda: _of_those(dependencies.live.stories.trace(wanted), may_see))

    async def message(request: Request) -> Response:
        subjects = (await admit(request)).subjects
        wanted = _parameter(request, "message")
        if not _may_see(access, subjects, None):
            # as one that does not exist
            return _json(Story(wanted, []))
        _asked(request, "message_story", "message")
        return await read(subjects, lambda: dependencies.live.stories.message(wanted))

    data = {"/live.json": live, "/story.json": story, "/message.json": message, "/trace.json": trace}
    found = {
        **dict.fromkeys(("/", "/page/{name}", "/doc", "/doc/openapi.json", "/doc/{name}"), _files(dependencies)),
        **data,
    }
    return [Route(path, route) for path, route in found.items()]


def _parameter(request: Request, name: str) -> str:
    check_parameters(request.query_params, (name,), headers=False)
    found = request.query_params.get(name)
    if not found:
        raise parameter_invalid(name, "is missing")
    return found


def _asked(request: Request, question: str, name: str) -> dict[str, Any]:
    try:
        return questions.parameters(question, _parameter(request, name))
    except InputError as error:
        # "The message is …", "The trace is …"
        raise parameter_invalid(name, str(error).split(" ", 2)[2].removesuffix(".")) from None


def _of_those(found: Trace, may_see: Callable[[str | None], bool]) -> Trace:
    note = "The tables cannot be read." if found.note and not may_see(None) else found.note
    seen = [request for request in found.requests if may_see(request.thing_id)]
    return replace(found, requests=seen[:TRACED], in_all=len(seen), note=note)


def _seen(found: Story, may_see: Callable[[str | None], bool]) -> Story:
    """Return the requests of a story that the subjects may see: several clients may choose the same id."""
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


def _may_see(access: Access, subjects: tuple[str, ...], thing_id: str | None) -> bool:
    """Return whether the subjects may see requests to a thing; without a thing, full read access is required."""
    if thing_id is None:
        return "*" in access.whole_things(subjects)
    return access.may("READ", subjects, thing_id, "/")


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


def _files(dependencies: Dependencies) -> Callable[[Request], Awaitable[Response]]:
    contents = _contents()

    async def answer(request: Request) -> Response:
        await dependencies.admission.admit(request)
        path = request.url.path
        if path not in contents:
            raise not_found(path)
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
