"""The live page with its data, and the API documentation; nothing is loaded from other hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from ackstream.gateway import openapi
from ackstream.gateway.errors import not_found, parameter_invalid

if TYPE_CHECKING:
    from starlette.requests import Request

    from ackstream.gateway.live import Live
    from ackstream.gateway.service import Dependencies

FILES = {"index.html": "text/html", "style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Pages:
    """The routes outside the API; all require authentication."""

    def __init__(self, dependencies: Dependencies, live: Live | None) -> None:
        """Serve the page and the documentation; without ``live``, only the documentation."""
        self._dependencies = dependencies
        self._live = live
        directory = Path(__file__).parent / "page"
        self._files = {name: (directory / name).read_bytes() for name in FILES}

    @property
    def routes(self) -> list[Route]:
        """The routes."""
        found = [Route("/doc", self.documentation), Route("/doc/openapi.json", self.document)]
        if self._live is not None:
            found += [
                Route("/", self.page),
                Route("/page/{name}", self.file),
                Route("/live.json", self.live),
                Route("/story.json", self.story),
            ]
        return found

    async def page(self, request: Request) -> Response:
        """Return the page itself."""
        await self._subjects(request)
        return _response(self._files["index.html"], FILES["index.html"])

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        await self._subjects(request)
        name = request.path_params["name"]
        if name not in self._files:
            raise not_found(request.url.path)
        return _response(self._files[name], FILES[name])

    async def live(self, request: Request) -> Response:
        """Return the counts and the failures of things that the subjects may read."""
        subjects = await self._subjects(request)
        assert self._live is not None  # noqa: S101 - the route exists only with it
        view = self._live.view()
        failures = [failure for failure in view.failures if self._may_see(subjects, failure.thing_id)]
        return _json(msgspec.structs.replace(view, failures=failures))

    async def story(self, request: Request) -> Response:
        """Return the history of a request, if the subjects may read its thing."""
        subjects = await self._subjects(request)
        wanted = request.query_params.get("correlation-id")
        if not wanted:
            raise parameter_invalid("correlation-id", "is missing")
        assert self._live is not None  # noqa: S101 - the route exists only with it
        story = await asyncio.to_thread(self._live.story, wanted)
        things = {happening.thing_id for happening in story.happenings if happening.thing_id is not None}
        if not all(self._may_see(subjects, thing_id) for thing_id in things or (None,)):
            story = msgspec.structs.replace(story, happenings=[])
        return _json(story)

    async def documentation(self, request: Request) -> Response:
        """Return the API documentation as HTML."""
        await self._subjects(request)
        return _response(openapi.page().encode(), "text/html")

    async def document(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        await self._subjects(request)
        return _json(openapi.document())

    async def _subjects(self, request: Request) -> tuple[str, ...]:
        return await self._dependencies.authenticator.identify(request)

    def _may_see(self, subjects: tuple[str, ...], thing_id: str | None) -> bool:
        """Return whether the subjects may see requests to a thing; without a thing, full read access is required."""
        access = self._dependencies.access
        if thing_id is None:
            return "*" in access.whole_things(subjects)
        return access.may("READ", subjects, thing_id, "/")


def _response(content: bytes, media_type: str) -> Response:
    return Response(content, headers=HEADERS, media_type=media_type)


def _json(value: object) -> Response:
    return _response(msgspec.json.encode(value), "application/json")
