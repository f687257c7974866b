"""The ACLs that let each party do what it has to, and nothing else: derived from its table, printed, and set."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import KafkaError, SecurityDisabledError

from ackstream.errors import SettingsError, UnreachableError
from ackstream.kafka.clients import connect_admin, failure
from ackstream.kafka.parties import OPERATOR, PARTIES
from ackstream.kafka.topics import TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ackstream.settings import Settings

_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.05
CLUSTER = "kafka-cluster"
"""The name of the one resource of that type."""


class Grant(NamedTuple):
    """What a principal may do: an operation on a topic, a group, or the cluster.

    :ivar resource: ``topic``, ``group`` or ``cluster``
    :ivar name: of the resource, or the beginning of the names of several
    :ivar prefixed: whether it is such a beginning
    :ivar operation: as Kafka's protocol calls it, such as ``READ``
    """

    resource: str
    name: str
    operation: str
    prefixed: bool = False


def grants(settings: Settings, name: str) -> list[Grant]:
    """Return what a party needs.

    :param name: a key of ``PARTIES``, or ``operator``
    """
    topic, own = settings.kafka.topic, settings.kafka.group
    if name == OPERATOR:
        return [
            *(Grant("topic", topic(each), "ALL") for each in TOPICS),
            *(Grant("group", own(group), "ALL", prefixed=True) for group in _all_groups()),
            *(Grant("cluster", CLUSTER, operation) for operation in ("DESCRIBE", "ALTER")),
        ]
    party = PARTIES[name]
    found = [Grant("topic", each, what) for what, topics in party.operations(settings.kafka).items() for each in topics]
    found += [Grant("group", own(group), "READ", prefixed=True) for group in party.groups]
    return found + [Grant("group", own(group), "DESCRIBE") for group in party.watches]


def _all_groups() -> list[str]:
    return sorted({group for party in PARTIES.values() for group in party.groups})


def chosen(names: Iterable[str]) -> list[str]:
    """Return names of parties.

    :raises SettingsError: there is no such party
    """
    known, found = (*PARTIES, OPERATOR), list(names)
    for name in found:
        if name not in known:
            raise SettingsError(f"There is no party {name!r}: the parties are {', '.join(known)}.")
    return found


def principals(settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """Return the principal of each party: that of ``given``, else ``User:``, the topics' prefix and the party's name.

    :raises SettingsError: there is no such party, or a principal has no type
    """
    chosen(given)
    for name, principal in given.items():
        if ":" not in principal:
            raise SettingsError(f"The principal of {name} is {principal!r}, without a type: write User:{principal}.")
    return {name: given.get(name, f"User:{settings.kafka.topic(name)}") for name in (*PARTIES, OPERATOR)}


def commands(settings: Settings, who: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    """Give the commands of Kafka that set the ACLs of some parties, one for each resource and operation."""
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


def apply(settings: Settings, who: Mapping[str, str], names: Iterable[str]) -> tuple[int, list[str]]:
    """Add the ACLs that the principals of some parties lack; return their number, and what those may do beyond that.

    A broker takes ACLs from its controller when it comes to it: they hold when this returns, so that who starts next is
    not refused.

    :raises AccessRefusedError: the login may not do that
    :raises SettingsError: the broker has no authorizer
    :raises UnreachableError: the broker does not take the ACLs from its controller
    """
    wanted: dict[str, set[ACL]] = {}
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
            f"Kafka at {settings.kafka.bootstrap} has no authorizer, so that everybody may do everything: set "
            f"authorizer.class.name in its properties, or start one with `ackstream up --secure`."
        ) from None
    except KafkaError as error:
        raise failure(settings.kafka, error) from error
    return added, further


def _await(settings: Settings, admin: Any, principal: str, acls: set[ACL]) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not acls <= set(admin.describe_acls(_all_of(principal))[0]):
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"Kafka at {settings.kafka.bootstrap} has not applied the ACLs of {principal} after "
                f"{_SETTLE_SECONDS:g} s: look at the log of its controller, then run `ackstream acls --apply` again."
            )
        time.sleep(_POLL_SECONDS)


def _acl(principal: str, grant: Grant) -> ACL:
    pattern = ACLResourcePatternType.PREFIXED if grant.prefixed else ACLResourcePatternType.LITERAL
    resource = ResourcePattern(ResourceType[grant.resource.upper()], grant.name, pattern)
    return ACL(principal, "*", ACLOperation[grant.operation], ACLPermissionType.ALLOW, resource)


def _all_of(principal: str) -> ACLFilter:
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    return ACLFilter(principal, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)


def _described(acl: ACL) -> str:
    resource = acl.resource_pattern
    names = f"{resource.resource_type.name} {resource.resource_name} ({resource.pattern_type.name})"
    return f"{acl.principal}: {acl.permission_type.name} {acl.operation.name} on {names}"
