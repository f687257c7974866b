"""``/doc``: the API's documentation, on which its operations can be tried. Nothing is loaded from other hosts."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from ackstream.gateway.errors import not_found
from ackstream.gateway.http.openapi import document

if TYPE_CHECKING:
    from starlette.requests import Request

    from ackstream.gateway.service import Dependencies

VIEWER = Path(__file__).parent.parent / "page" / "swagger-ui"
"""Swagger UI, as it is published; its large files are compressed."""

HEADERS = {
    # the viewer has its icons in its style sheet
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # the browser asks each time whether it has changed
    "cache-control": "private, no-cache",
}


def documentation_routes(dependencies: Dependencies) -> list[Route]:
    """Return the routes of the documentation; all require authentication."""
    script, style = "text/javascript", "text/css"
    contents = {
        "/doc": (gzip.compress((VIEWER / "index.html").read_bytes(), mtime=0), "text/html"),
        "/doc/start.js": (gzip.compress((VIEWER / "start.js").read_bytes(), mtime=0), script),
        "/doc/swagger-ui-bundle.js": ((VIEWER / "swagger-ui-bundle.js.gz").read_bytes(), script),
        "/doc/swagger-ui.css": ((VIEWER / "swagger-ui.css.gz").read_bytes(), style),
        "/doc/openapi.json": (gzip.compress(msgspec.json.encode(document()), mtime=0), "application/json"),
    }
    tags = {path: f'"{sha256(content).hexdigest()[:16]}"' for path, (content, _) in contents.items()}

    async def answer(request: Request) -> Response:
        await dependencies.admit(request)
        path = request.url.path
        if path not in contents:
            raise not_found(path)
        headers = HEADERS | {"etag": tags[path]}
        if request.headers.get("if-none-match") == tags[path]:
            return Response(None, 304, headers)
        content, media_type = contents[path]
        if _takes_gzip(request):
            headers |= {"content-encoding": "gzip"}
        else:
            content = gzip.decompress(content)
        return Response(content, headers=headers | {"vary": "accept-encoding"}, media_type=media_type)

    return [Route(path, answer) for path in ("/doc", "/doc/openapi.json", "/doc/{name}")]


def _takes_gzip(request: Request) -> bool:
    for coding in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = coding.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return quality.replace(" ", "").rstrip("0.") != "q="
    return False
