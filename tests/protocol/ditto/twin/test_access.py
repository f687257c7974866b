from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from ackstream.protocol.ditto.twin.access import OPEN, Access, Rule

LAMP = "org.acme:lamp"
ACCESS = Access(
    [
        Rule(("user:admin",), ("*",), "/", ("READ", "WRITE")),
        Rule(("user:ada",), ("org.acme:*",), "/attributes", ("READ", "WRITE")),
        Rule(("user:*",), ("org.acme:lamp",), "/features/light/properties/on", ("READ",)),
        Rule(("jwt:robot",), ("org.acme:lamp",), "/inbox/messages", ("WRITE",)),
    ]
)


@pytest.mark.parametrize(
    ("subject", "permission", "thing_id", "path", "allowed"),
    [
        ("user:admin", "WRITE", "any:thing", "/", True),
        ("user:ada", "READ", LAMP, "/attributes", True),
        ("user:ada", "READ", LAMP, "/attributes/a/b", True),
        ("user:ada", "WRITE", LAMP, "/attributes/a", True),
        ("user:ada", "READ", LAMP, "/", False),
        ("user:ada", "READ", LAMP, "/attributesOfOthers", False),
        ("user:ada", "READ", "org.other:lamp", "/attributes", False),
        ("user:ada", "READ", "xorg.acme:lamp", "/attributes", False),
        ("user:bob", "READ", LAMP, "/features/light/properties/on", True),
        ("user:bob", "WRITE", LAMP, "/features/light/properties/on", False),
        ("user:bob", "READ", LAMP, "/features/light", False),
        ("jwt:robot", "WRITE", LAMP, "/inbox/messages/ask", True),
        ("jwt:robot", "READ", LAMP, "/inbox/messages/ask", False),
        ("nobody", "READ", LAMP, "/", False),
    ],
)
def test_a_rule_holds_for_its_subjects_things_and_everything_below_its_path(
    subject: str, permission: Any, thing_id: str, path: str, allowed: Any
) -> None:
    assert ACCESS.may(permission, [subject], thing_id, path) is allowed


def test_one_of_several_subjects_is_enough() -> None:
    assert ACCESS.may("WRITE", ["nobody", "user:admin"], LAMP, "/")


def test_a_thing_is_known_to_who_may_read_any_part_of_it() -> None:
    assert ACCESS.knows(["user:bob"], LAMP)
    assert not ACCESS.knows(["user:bob"], "org.acme:door")
    assert not ACCESS.knows(["jwt:robot"], LAMP)


@pytest.mark.parametrize(
    ("subject", "path", "value", "visible"),
    [
        ("user:admin", "/", {"attributes": 1}, {"attributes": 1}),
        ("user:bob", "/", {"attributes": {"a": 1}}, UNSET),
        (
            "user:bob",
            "/",
            {"thingId": LAMP, "features": {"light": {"properties": {"on": True, "x": 1}}, "f": {}}},
            {"features": {"light": {"properties": {"on": True}}}},
        ),
        ("user:bob", "/features/light", {"properties": {"on": True}}, {"properties": {"on": True}}),
        ("user:bob", "/features/light/properties/on", True, True),
        ("user:bob", "/features/light/properties/on/more", 3, 3),
        ("user:bob", "/features", [1, 2], UNSET),
        ("user:ada", "/", {"attributes": {"a": 1}, "policyId": "x:y"}, {"attributes": {"a": 1}}),
        ("nobody", "/", {"attributes": {"a": 1}}, UNSET),
    ],
)
def test_of_a_value_only_what_may_be_read_is_visible(subject: str, path: str, value: Any, visible: Any) -> None:
    assert ACCESS.visible([subject], LAMP, path, value) == visible


def test_a_key_with_a_slash_is_found_by_its_escaped_form() -> None:
    access = Access([Rule(("s",), ("*",), "/attributes/a~1b~0c")])
    assert access.visible(["s"], LAMP, "/", {"attributes": {"a/b~c": 1, "a": {"b~c": 2}}}) == {
        "attributes": {"a/b~c": 1}
    }


def test_things_that_may_be_read_entirely() -> None:
    assert ACCESS.whole_things(["user:admin"]) == ("*",)
    assert ACCESS.whole_things(["user:ada"]) == ()


POINTERS = st.lists(st.sampled_from("abc"), max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(POINTERS, max_size=3), POINTERS)
def test_what_may_be_read_is_visible_whole(paths: list[str], place: str) -> None:
    access = Access([Rule(("s",), path=path) for path in paths])
    value = {"k": [1]}
    if access.may("READ", ["s"], LAMP, place):
        assert access.visible(["s"], LAMP, place, value) is value
    else:
        assert access.visible(["s"], LAMP, place, value) is not value


def test_without_authentication_everything_is_open() -> None:
    assert OPEN.may("WRITE", ["anonymous"], "any:thing", "/x")


def test_labels_are_granted_by_rules_and_to_nobody_without() -> None:
    access = Access([Rule(("user:ann",), labels=("fleet:*", "my-ack")), Rule(("user:*",), grant=("READ", "WRITE"))])
    for subject, label, allowed in (
        ("user:ann", "fleet:done", True),
        ("user:ann", "my-ack", True),
        ("user:ann", "my-ack-2", False),
        ("user:bob", "fleet:done", False),
    ):
        assert access.may_declare((subject,), label) is allowed
    assert OPEN.may_declare(("anonymous",), "fleet:done")
