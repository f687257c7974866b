"""What a tenant's things use, and changes that its quota has no room for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.twin.batch import fold
from ackstream.jobs.twin.changes import QuotaUsage
from ackstream.settings import Settings
from tests.jobs.twin.commands import answers, body, records, whole


def limited(**limits: int) -> Settings:
    return Settings.model_validate({"quotas": [{"name": "acme", "namespaces": ["org.acme", "org.acme.*"], **limits}]})


def create(name: str, **attributes: Any) -> Any:
    return body("create", value={"attributes": attributes}, thing=name)


def statuses(*commands: Any, settings: Settings) -> list[int]:
    return [found["status"] for found in answers(*commands, settings=settings)]


def test_a_thing_that_a_quota_has_no_room_for_is_refused_with_a_sentence() -> None:
    *_, refused = answers(*[create(f"org.acme:{n}") for n in range(3)], settings=limited(max_things=2))
    assert refused["topic"] == "org.acme/2/things/twin/errors"
    assert (refused["value"]["status"], refused["value"]["error"]) == (403, "things:quota.exceeded")
    sentence = "The change of the Thing with ID 'org.acme:2' exceeds the quota 'acme' of 2 things."
    assert refused["value"]["message"] == sentence


def test_the_namespaces_of_a_quota_count_together_and_others_do_not() -> None:
    names = ["org.acme:a", "org.bank:a", "org.acme.plant:a", "org.acme:b", "org.bank:b", "org.acmes:a"]
    assert statuses(*map(create, names), settings=limited(max_things=2)) == [201, 201, 201, 403, 201, 201]


def test_a_deleted_thing_makes_room_however_it_is_created() -> None:
    sent = [
        create("org.acme:a"),
        body("modify", value={}, thing="org.acme:b"),
        body("merge", value={"attributes": {}}, thing="org.acme:c"),
        body("modify", "/attributes", {"x": 1}, thing="org.acme:a"),
        body("delete", thing="org.acme:a"),
        body("merge", value={"attributes": {}}, thing="org.acme:c"),
    ]
    assert statuses(*sent, settings=limited(max_things=2)) == [201, 201, 403, 204, 204, 201]


def test_bytes_are_those_of_the_json_and_what_gets_smaller_is_never_refused() -> None:
    small = len(next(iter(whole(records(create("org.acme:a"))).changed.values())).content or b"")
    settings = limited(max_bytes=small + 10)
    sent = [
        create("org.acme:a"),
        body("modify", "/attributes/x", "y" * 20, thing="org.acme:a"),
        create("org.acme:b"),
        body("retrieve", thing="org.acme:a"),
    ]
    assert statuses(*sent, settings=settings) == [201, 403, 403, 200]
    large = whole(records(create("org.acme:a", x="y" * 1_000))).changed
    smaller = records(body("modify", "/attributes/x", "y" * 900, thing="org.acme:a"))
    larger = records(body("modify", "/attributes/x", "y" * 1_001, thing="org.acme:a"))
    assert len(whole(smaller, large, settings).rows) == 1
    assert len(whole(larger, large, settings).rows) == 0


names = st.sampled_from(["org.acme:a", "org.acme:b", "org.acme:c", "org.bank:a"])
values = st.sampled_from([{}, {"attributes": {"x": "y" * 40}}])
commands = st.builds(
    lambda action, value, name: body(action, value=value, thing=name),
    st.sampled_from(["create", "modify", "merge", "delete"]),
    values,
    names,
)


@given(st.lists(commands, max_size=16), st.integers(1, 400), st.data())
def test_it_does_not_matter_where_batches_and_parts_are_cut(sent: list[Any], limit: int, data: st.DataObject) -> None:
    settings = limited(max_things=2, max_bytes=220)
    taken = records(*sent)
    expected = whole(taken, settings=settings)
    things: dict[str, Any] = {}
    usage = QuotaUsage(settings.quotas, things)
    messages, start = [], 0
    while start < len(taken):
        end = data.draw(st.integers(start + 1, len(taken)))
        for part in fold(taken[start:end], things, settings, limit, usage):
            messages += part.messages
        start = end
        # a start counts the things anew
        assert usage._used == QuotaUsage(settings.quotas, things)._used
        if data.draw(st.booleans()):
            usage = QuotaUsage(settings.quotas, things)
    assert messages == expected.messages
    assert things == expected.changed
    acme = [thing for name, thing in things.items() if name.startswith("org.acme:") and thing.content is not None]
    assert len(acme) <= 2
    assert sum(len(thing.content) for thing in acme) <= 220


def test_a_part_that_fails_has_used_nothing() -> None:
    settings = limited(max_things=1)
    usage = QuotaUsage(settings.quotas, {})
    parts = fold(records(create("org.acme:a"), create("org.acme:b")), {}, settings, 1, usage)
    next(parts)
    assert usage._used == QuotaUsage(settings.quotas, {})._used
    next(parts)
    assert usage._used[0].things == 1


def test_without_quotas_nothing_is_counted() -> None:
    usage = QuotaUsage((), {})
    assert usage._counting("org.acme:a") == ()
    with pytest.raises(StopIteration):
        next(iter(usage._used))
