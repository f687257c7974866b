"""Authenticate clients: by a proxy, Basic with passwords, Bearer with tokens, a certificate, or not on loopback."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from starlette.requests import HTTPConnection

from ackstream.errors import SettingsError
from ackstream.gateway.access.passwords import Passwords, check_users
from ackstream.gateway.access.tokens import Tokens
from ackstream.gateway.errors import TOO_MANY_REQUESTS, authentication_failed, label_not_allowed
from ackstream.gateway.middleware.admission import ANONYMOUS, THIS_MACHINE, Identity, address_of
from ackstream.gateway.middleware.audit import Sender
from ackstream.gateway.middleware.connections import certified_name
from ackstream.gateway.middleware.edge import proxied_subjects
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.twin.access import OPEN, Access
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway
from ackstream.settings.gateway import User, WatchedFile, with_access_file
from ackstream.settings.security import is_loopback

log = logging.getLogger(__name__)

UNAUTHORIZED = 401
PROXIED_SECONDS = 3600.0
"""Longest WebSocket or event stream of a client of a proxy, which cannot revoke an open one."""


class Authenticator(Closing):
    """Maps a connection to ``proxy:NAME``, ``user:NAME``, ``PREFIX:SUBJECT`` (a token) or else ``certificate:NAME``."""

    def __init__(
        self, settings: Gateway, failed: Callable[[HTTPConnection, DittoError, str | None], None] | None = None
    ) -> None:
        """Read the keys, and begin to fetch those of issuers; ``settings`` with the users of ``access_file``.

        :param failed: called with each failed sign-in: the connection, the error, and the user that it was about
        :raises SettingsError: a key or hash is unfit, or authentication is off on an address other hosts can reach
        """
        self._failed = failed or (lambda *_: None)
        self._changed: set[Callable[[], None]] = set()
        check_users(settings)
        # an access file may be without users, which admits no client
        by_password = bool(settings.users or settings.access_file)
        schemes = {
            'Basic realm="ackstream", charset="UTF-8"': by_password,
            'Bearer realm="ackstream"': settings.issuers,
        }
        self._schemes = [scheme for scheme, accepted in schemes.items() if accepted]
        self.required = bool(self._schemes or settings.proxy.subject_header or settings.tls.client_ca)
        if not self.required and not is_loopback(settings.host):
            raise SettingsError(
                f"The setting gateway.host is {settings.host!r}, which other hosts can reach, while authentication is "
                f"off: set gateway.users, gateway.issuers or gateway.access_file, or listen on 127.0.0.1."
            )
        if not self.required:
            log.warning("Authentication is off: every user of this machine may read and write all things.")
        self._passwords = Passwords(settings.users) if by_password else None
        self._tokens = Tokens(settings.issuers) if settings.issuers else None
        self.key_files = [] if self._tokens is None else self._tokens.files

    def close(self) -> None:
        """Stop checking passwords and fetching keys."""
        for part in (self._passwords, self._tokens):
            if part is not None:
                part.close()

    async def admit(self, connection: HTTPConnection) -> Identity:
        """Return the subjects of a connection and their expiry; raises 401, or 503: it cannot be checked now."""
        if not self.required:
            return Identity((ANONYMOUS,))
        with self._failures(connection) as named:
            if (proxied := proxied_subjects(connection)) is not None:
                return Identity(proxied, time.time() + PROXIED_SECONDS)
            scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
            if not scheme and (name := certified_name(connection)) is not None:
                return Identity((f"certificate:{name}",))
            if scheme.lower() == "basic" and self._passwords is not None:
                return await self._user(self._passwords, connection, credentials.strip(), named)
            return await self._read(credentials.strip() if scheme.lower() == "bearer" else None)

    async def renew(self, connection: HTTPConnection, token: str) -> Identity:
        """Return the subjects of a token and its expiry; raises as :meth:`admit` does."""
        if not self.required:
            return Identity((ANONYMOUS,))
        with self._failures(connection):
            return await self._read(token)

    def replace_users(self, users: Mapping[str, User]) -> None:
        """Admit these checked users from now on, and have sessions check their own; for another thread."""
        if self._passwords is not None:
            self._passwords.replace(users)
        for look in tuple(self._changed):
            look()

    def holds(self, identity: Identity) -> bool:
        """Return whether an admitted client would be admitted now with the same identity; tokens only expire."""
        if identity.stamp is None or self._passwords is None:
            return True
        account = self._passwords.accounts.get(identity.subjects[0].partition(":")[2])
        return account is not None and account.stamp == identity.stamp

    def watch(self, look: Callable[[], None]) -> Callable[[], None]:
        """Call ``look`` after each change of users, in any thread; return a function that stops this."""
        self._changed.add(look)
        return lambda: self._changed.discard(look)

    async def _user(
        self, passwords: Passwords, connection: HTTPConnection, credentials: str, named: list[str]
    ) -> Identity:
        name, right = await passwords.check(credentials, address_of(connection) or THIS_MACHINE)
        account = passwords.accounts.get(name)
        if account is not None:
            named.append(name)
        if not right or account is None:
            raise authentication_failed("The user name or the password is wrong.", self._schemes)
        return Identity(account.subjects, None, account.stamp)

    async def _read(self, token: str | None) -> Identity:
        if self._tokens is None or token is None:
            raise authentication_failed("The request has no credentials of an accepted scheme.", self._schemes)
        return Identity(*await self._tokens.read(token))

    @contextmanager
    def _failures(self, connection: HTTPConnection) -> Iterator[list[str]]:
        """Report a sign-in that fails in the block, with its user if the block names one that exists."""
        named: list[str] = []
        try:
            yield named
        except DittoError as error:
            # a 503, without keys or room to check passwords, is not a failure of the client
            if error.status in (UNAUTHORIZED, TOO_MANY_REQUESTS):
                self._failed(connection, error, named[0] if named else None)
            raise


def access_of(settings: Gateway, authenticator: Authenticator) -> Access:
    """Return the access rules: everything is open without authentication; with it and no rules, ``SettingsError``."""
    if not authenticator.required:
        return OPEN
    if not settings.access:
        raise SettingsError(
            "The setting gateway.access is empty, so no authenticated user may do anything: grant access with "
            "[[gateway.access]] (subjects or roles, things, path, grant)."
        )
    return Access(access.rule for access in settings.access)


def watched_files(settings: Gateway, authenticator: Authenticator, access: Access) -> Iterable[WatchedFile]:
    """Return the files that may change while the gateway runs; ``settings`` are without the access file's content."""
    for keys in authenticator.key_files:
        yield WatchedFile(keys.path, keys.reload)
    if settings.access_file is not None:

        def reload() -> None:
            read = with_access_file(settings)
            check_users(read)
            # rules first: a new user must not get the previous rules
            access.replace(each.rule for each in read.access)
            authenticator.replace_users(read.users)

        yield WatchedFile(settings.access_file, reload)


def check_labels(access: Access, subjects: tuple[str, ...], labels: Iterable[str]) -> None:
    """Raise 403 unless each label is granted to one of the client's subjects."""
    for label in sorted(labels):
        if not access.may_declare(subjects, label):
            raise label_not_allowed(label)


class SignedIn:
    """The rights of one WebSocket or event stream; for the event loop that serves it."""

    def __init__(
        self,
        authenticator: Authenticator,
        access: Access,
        connection: HTTPConnection,
        identity: Identity,
        labels: Iterable[str],
        end: Callable[[str], None],
    ) -> None:
        """Begin; ``end`` is called with the reason once the client has lost its identity or the right to a label."""
        self._authenticator, self._access, self._labels = authenticator, access, labels
        self._connection, self._end = connection, end
        self._expiry: asyncio.TimerHandle | None = None
        self._unwatch = authenticator.watch(in_loop(self._look))
        # the user may have changed since the handshake
        self._begin(identity)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects and roles of the client, as they are now."""
        return self._identity.subjects

    @property
    def sender(self) -> Sender:
        """The sender as recorded in the audit."""
        return Sender.of(self._connection, self.subjects)

    async def renew(self, token: str) -> None:
        """Continue with the roles and expiry of a new token; an unfit one or another subject's ends the session."""
        try:
            identity = await self._authenticator.renew(self._connection, token)
        except DittoError as error:
            self._end(error.message)
            return
        if identity.subjects[0] != self.subjects[0]:
            self._end("The token belongs to another subject.")
            return
        self._begin(identity)

    def close(self) -> None:
        """Stop checking."""
        self._unwatch()
        if self._expiry is not None:
            self._expiry.cancel()

    def _begin(self, identity: Identity) -> None:
        self._identity = identity
        if self._expiry is not None:
            self._expiry.cancel()
        if identity.expires is not None:
            loop, seconds = asyncio.get_running_loop(), identity.expires - time.time()
            self._expiry = loop.call_later(seconds, self._end, "The sign-in has expired.")
        self._look()

    def _look(self) -> None:
        if not self._authenticator.holds(self._identity):
            self._end("The user has changed: sign in again.")
        try:
            check_labels(self._access, self.subjects, self._labels)
        except DittoError as error:
            self._end(error.message)


def in_loop(work: Callable[[], Any]) -> Callable[[], None]:
    """Return a function for other threads, which has the running event loop do the work."""
    loop = asyncio.get_running_loop()

    def start() -> None:
        # the loop may have been closed already
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(work)

    return start
