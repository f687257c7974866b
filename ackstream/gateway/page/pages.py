"""The live page and ``/doc``, the API documentation with a form for each operation; no host but this serves a file."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ackstream.errors import InputError
from ackstream.gateway.errors import not_found, parameter_invalid
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.http.translation import check_parameters
from ackstream.gateway.page.stories import Stories, Story, Trace, may_see

Answer = Callable[[Request], Awaitable[Response]]

STORIES = 2
"""As many are read from the tables at a time: each looks through several."""

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
        if may_see(access.whole_things(subjects), None):
            return _json(dependencies.live.whole())
        return _json(dependencies.live.own(subjects, lambda one: may_see(access.whole_things(subjects), one)))

    def told(name: str, tell: Callable[[Stories, str, tuple[str, ...]], Story | Trace]) -> Answer:
        async def route(request: Request) -> Response:
            subjects = (await admit(request)).subjects
            check_parameters(request.query_params, (name,), headers=False)
            if not (wanted := request.query_params.get(name)):
                raise parameter_invalid(name, "is missing")
            things = access.whole_things(subjects)
            with dependencies.admission.limits.story(subjects[0]):
                async with slots:
                    try:
                        # an answer may have megabytes
                        return await asyncio.to_thread(lambda: _json(tell(dependencies.live.stories, wanted, things)))
                    except InputError as error:
                        # "The message is …", "The trace is …"
                        raise parameter_invalid(name, str(error).split(" ", 2)[2].removesuffix(".")) from None

        return route

    found = {
        **dict.fromkeys(("/", "/page/{name}", "/doc", "/doc/openapi.json", "/doc/{name}"), _files(dependencies)),
        "/live.json": live,
        "/story.json": told("correlation-id", Stories.story),
        "/message.json": told("message", Stories.message),
        "/trace.json": told("trace-id", Stories.trace),
    }
    return [Route(path, route) for path, route in found.items()]


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
