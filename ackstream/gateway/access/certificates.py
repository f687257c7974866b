"""The certificates of the gateway and its clients: those of the files as they are at the moment."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ackstream.errors import SettingsError
from ackstream.settings.access_file import file_state
from ackstream.settings.security import is_loopback

if TYPE_CHECKING:
    import ssl
    from asyncio import BaseTransport

    from starlette.requests import HTTPConnection

    from ackstream.settings import Gateway
    from ackstream.settings.gateway import GatewayTls

log = logging.getLogger(__name__)

CERTIFICATE = "certificate"
"""The key of the state of a request under which there is the name in the certificate of its client, or ``None``."""

MAX_CHARACTERS = 256


class Certificates:
    """What new connections are secured with; connections that are open keep what they began with."""

    def __init__(self, tls: GatewayTls) -> None:
        """Read the files.

        :raises SettingsError: one of them is missing or unfit
        """
        self._tls = tls
        self._stamps = [*map(file_state, tls.files)]
        try:
            self._context = tls.context()
        except ValueError as error:
            raise SettingsError(f"The setting gateway.tls cannot be used: {error}.") from None

    def context(self) -> ssl.SSLContext:
        """Return the context of the moment."""
        return self._context

    def renew(self) -> None:
        """Read the files again if they have changed; one that is unfit changes nothing, and a warning says why."""
        stamps = [*map(file_state, self._tls.files)]
        if stamps == self._stamps:
            return
        # one that is only half there changes again
        self._stamps = stamps
        try:
            self._context = self._tls.context()
        except ValueError as error:
            log.warning("The gateway goes on with the certificates it has: %s.", error)
        else:
            log.info("The gateway has read its certificates again.")


def certified_name(connection: HTTPConnection) -> str | None:
    """Return the name in the certificate of a client, if there is one that can be the name of a subject."""
    found: str | None = connection.scope.get("state", {}).get(CERTIFICATE)
    return found if found and len(found) <= MAX_CHARACTERS and found.isprintable() else None


def common_name(transport: BaseTransport) -> str | None:
    """Return the common name in the certificate of a client, which TLS has verified; ``None``: it has shown none."""
    found: dict[str, Any] = transport.get_extra_info("peercert") or {}
    names = [value for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names else None


def check_transport(settings: Gateway, *, authenticated: bool) -> None:
    """Refuse to listen where others could read what clients authenticate with.

    :raises SettingsError: with the remedy
    """
    encrypted = settings.tls.certificate is not None or settings.proxy.addresses
    if authenticated and not encrypted and not is_loopback(settings.host):
        raise SettingsError(
            f"The setting gateway.host is {settings.host!r}, so everyone on the way there could read passwords, tokens "
            f"and things: set gateway.tls.certificate, or name the proxy that encrypts in gateway.proxy.addresses, or "
            f"listen on 127.0.0.1."
        )
