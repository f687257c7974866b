"""The topics that each party of a system reads and writes (``parties.toml``), and the ACLs made from them.

With the ACLs of ``ackstream acls``, a broker allows each party only this. A party is a program with a login of its own;
a program that is several of them (a service that publishes and reads) has one login with the rights of each.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from kafka import admin as acl
from kafka.errors import KafkaError, SecurityDisabledError

from ackstream.errors import SettingsError, UnreachableError
from ackstream.kafka.clients import connect_admin, failure
from ackstream.settings.kafka import job_group

if TYPE_CHECKING:
    from ackstream.settings import Kafka, Settings


@dataclass(frozen=True, kw_only=True)
class Party:
    """The needs of one kind of program: see ``parties.toml``; ``watches``: groups whose offsets it shows."""

    about: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    looks_up: tuple[str, ...] = ()
    job: bool = False
    groups: tuple[str, ...] = ()
    watches: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads or writes."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    def operations(self, kafka: Kafka) -> dict[str, list[str]]:
        """Return the real names of its topics by the operations of Kafka's ACLs."""
        named = {"READ": self.reads, "WRITE": self.writes, "DESCRIBE": self.looks_up}
        if self.job:
            named["DESCRIBE_CONFIGS"] = self.topics
        return {operation: [kafka.topic(name) for name in names] for operation, names in named.items()}


LEASED = ("correlate", "archive", "twin", "persist", "settle", "queues", "query")
LEASES = tuple(f"{job}-lease" for job in LEASED)


def _read() -> Iterator[tuple[str, Party]]:
    text = Path(__file__).with_suffix(".toml").read_bytes()
    for name, party in msgspec.toml.decode(text, type=dict[str, Party]).items():
        further: dict[str, Any] = {}
        if name in LEASED:
            reads, writes = ((*topics, f"{name}-lease") for topics in (party.reads, party.writes))
            further = {"reads": reads, "writes": writes, "job": True, "groups": (job_group(name),)}
        elif name == "gateway":
            further = {"looks_up": (*party.looks_up, *LEASES), "watches": tuple(map(job_group, LEASED))}
        yield name, replace(party, **further)


PARTIES = dict(_read())
"""All parties except the operator, which has all rights on the topics of the system."""
OPERATOR = "operator"


def writers(topic: str) -> list[str]:
    """Return the parties that write a topic."""
    return [name for name, party in PARTIES.items() if topic in party.writes]


def readers(topic: str) -> list[str]:
    """Return the parties that read a topic."""
    return [name for name, party in PARTIES.items() if topic in party.reads]


_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.05
CLUSTER = "kafka-cluster"
"""The name of the one resource of that type."""
REDRIVE = "redrive"
"""The transactional id of ``ackstream redrive``, without the prefix: one run at a time."""


class Grant(NamedTuple):
    """A right of a principal: an operation, such as ``READ``, on a resource.

    ``resource``: ``topic``, ``group``, ``cluster`` or ``transactional-id``; ``name``: its name; if ``prefixed``, the
    prefix of several names.
    """

    resource: str
    name: str
    operation: str
    prefixed: bool = False


def grants(settings: Settings, name: str) -> list[Grant]:
    """Return the rights of a party: a key of ``PARTIES``, or ``operator``."""
    topic, own = settings.kafka.topic, settings.kafka.group
    if name == OPERATOR:
        topics = {each for party in PARTIES.values() for each in (*party.topics, *party.looks_up)}
        groups = {group for party in PARTIES.values() for group in party.groups}
        return [
            *(Grant("topic", topic(each), "ALL") for each in sorted(topics)),
            *(Grant("group", own(group), "ALL", prefixed=True) for group in sorted(groups)),
            *(Grant("cluster", CLUSTER, operation) for operation in ("DESCRIBE", "ALTER")),
            *(Grant("transactional-id", own(REDRIVE), operation) for operation in ("DESCRIBE", "WRITE")),
        ]
    party = PARTIES[name]
    found = [Grant("topic", each, what) for what, topics in party.operations(settings.kafka).items() for each in topics]
    found += [Grant("group", own(group), "READ", prefixed=True) for group in party.groups]
    return found + [Grant("group", own(group), "DESCRIBE") for group in party.watches]


def chosen(names: Iterable[str]) -> list[str]:
    """Return names of parties; raise a SettingsError for an unknown one."""
    known, found = (*PARTIES, OPERATOR), list(names)
    for name in found:
        if name not in known:
            raise SettingsError(f"There is no party {name!r}: the parties are {', '.join(known)}.")
    return found


def principals(settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """Return the principal of each party: that of ``given``, else ``User:``, the topics' prefix and its name."""
    # Raises SettingsError: a party is unknown, or a principal has no type.
    chosen(given)
    for name, principal in given.items():
        if ":" not in principal:
            raise SettingsError(f"The principal of {name} is {principal!r}, without a type: write User:{principal}.")
    return {name: given.get(name, f"User:{settings.kafka.topic(name)}") for name in (*PARTIES, OPERATOR)}


def acl_commands(settings: Settings, who: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    """Yield the commands of Kafka that set the ACLs of parties, one for each resource and operation."""
    for name in names:
        for grant in grants(settings, name):
            words = [
                *("kafka-acls.sh", "--bootstrap-server", settings.kafka.bootstrap, "--add"),
                *("--allow-principal", who[name]),
                *("--operation", grant.operation.title().replace("_", "")),
            ]
            words += ["--cluster"] if grant.resource == "cluster" else [f"--{grant.resource}", grant.name]
            if grant.prefixed:
                words += ["--resource-pattern-type", "prefixed"]
            yield shlex.join(words)


def apply_acls(settings: Settings, who: Mapping[str, str], names: Iterable[str]) -> tuple[int, list[str]]:
    """Add the missing ACLs of the principals of parties; return their number, and further rights of the principals."""
    # A broker receives ACLs from its controller with a delay: they hold when this returns, so that the next program
    # that starts is not refused. Raises AccessRefusedError (the login may not set ACLs), SettingsError (the broker has
    # no authorizer), UnreachableError (the broker does not receive the ACLs).
    wanted: dict[str, set[acl.ACL]] = {}
    for name in names:
        wanted.setdefault(who[name], set()).update(_acl(who[name], grant) for grant in grants(settings, name))
    added, further = 0, []
    try:
        with connect_admin(settings.kafka) as admin:
            for principal, acls in wanted.items():
                found = set(admin.describe_acls(_all_of(principal))[0])
                missing = sorted(acls - found, key=repr)
                for error in admin.create_acls(missing)["failed"] if missing else ():
                    raise error
                _await(settings, admin, principal, acls)
                added += len(missing)
                further += sorted(map(_described, found - acls))
    except SecurityDisabledError:
        raise SettingsError(
            f"Kafka at {settings.kafka.bootstrap} has no authorizer, so that all clients may do everything: set "
            f"authorizer.class.name in its properties, or start one with `ackstream up --secure`."
        ) from None
    except KafkaError as error:
        raise failure(settings.kafka, error) from error
    return added, further


def _await(settings: Settings, admin: Any, principal: str, acls: set[acl.ACL]) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not acls <= set(admin.describe_acls(_all_of(principal))[0]):
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"Kafka at {settings.kafka.bootstrap} has not applied the ACLs of {principal} after "
                f"{_SETTLE_SECONDS:g} s: look at the log of its controller, then run `ackstream acls --apply` again."
            )
        time.sleep(_POLL_SECONDS)


def _acl(principal: str, grant: Grant) -> acl.ACL:
    pattern = acl.ACLResourcePatternType["PREFIXED" if grant.prefixed else "LITERAL"]
    resource = acl.ResourcePattern(acl.ResourceType[grant.resource.upper().replace("-", "_")], grant.name, pattern)
    return acl.ACL(principal, "*", acl.ACLOperation[grant.operation], acl.ACLPermissionType.ALLOW, resource)


def _all_of(principal: str) -> acl.ACLFilter:
    anything = acl.ResourcePatternFilter(acl.ResourceType.ANY, None, acl.ACLResourcePatternType.ANY)
    return acl.ACLFilter(principal, None, acl.ACLOperation.ANY, acl.ACLPermissionType.ANY, anything)


def _described(one: acl.ACL) -> str:
    resource = one.resource_pattern
    names = f"{resource.resource_type.name} {resource.resource_name} ({resource.pattern_type.name})"
    return f"{one.principal}: {one.permission_type.name} {one.operation.name} on {names}"
