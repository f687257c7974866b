"""From the table of parties to ACLs, as commands; that they are enough, and needed, is in tests/integration."""

from __future__ import annotations

import pytest

from ackstream.errors import SettingsError
from ackstream.kafka import parties
from ackstream.kafka.parties import PARTIES, Grant
from ackstream.kafka.topics import TOPICS
from ackstream.settings import Kafka, Settings

SETTINGS = Settings(kafka=Kafka(bootstrap="k:9092", topic_prefix="p-"))


def test_a_client_may_do_what_it_needs_and_nothing_else() -> None:
    assert parties.grants(SETTINGS, "requester") == [
        Grant("topic", "p-replies", "READ"),
        Grant("topic", "p-signals", "WRITE"),
    ]


def test_a_job_also_looks_at_how_its_topics_are_configured_and_commits_to_its_groups() -> None:
    assert parties.grants(SETTINGS, "archive") == [
        Grant("topic", "p-ledger", "READ"),
        Grant("topic", "p-audit", "READ"),
        Grant("topic", "p-archive-lease", "READ"),
        Grant("topic", "p-archive-lease", "WRITE"),
        Grant("topic", "p-ledger", "DESCRIBE_CONFIGS"),
        Grant("topic", "p-audit", "DESCRIBE_CONFIGS"),
        Grant("topic", "p-archive-lease", "DESCRIBE_CONFIGS"),
        Grant("group", "p-ackstream-archive", "READ", prefixed=True),
    ]


@pytest.mark.parametrize("name", PARTIES)
def test_no_party_but_the_operator_may_create_or_change_anything(name: str) -> None:
    found = parties.grants(SETTINGS, name)
    assert {grant.operation for grant in found} <= {"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"}
    assert {grant.resource for grant in found} <= {"topic", "group"}
    assert not any(grant.prefixed for grant in found if grant.resource == "topic")


def test_the_operator_may_do_everything_to_the_topics_and_groups_of_the_system_alone() -> None:
    found = parties.grants(SETTINGS, "operator")
    assert {grant.name for grant in found if grant.resource == "topic"} == {f"p-{name}" for name in TOPICS}
    assert all(grant.name.startswith("p-") for grant in found if grant.resource == "group")
    assert Grant("cluster", "kafka-cluster", "ALTER") in found


def test_the_commands_are_those_of_kafka() -> None:
    who = parties.principals(SETTINGS, {"archive": "User:CN=archive,O=Acme Inc"})
    found = list(parties.acl_commands(SETTINGS, who, ["archive", "requester", "operator"]))
    start = "kafka-acls.sh --bootstrap-server k:9092 --add --allow-principal"
    assert found[0] == f"{start} 'User:CN=archive,O=Acme Inc' --operation Read --topic p-ledger"
    assert found[6] == f"{start} 'User:CN=archive,O=Acme Inc' --operation DescribeConfigs --topic p-archive-lease"
    assert found[7].endswith("--operation Read --group p-ackstream-archive --resource-pattern-type prefixed")
    assert found[8] == f"{start} User:p-requester --operation Read --topic p-replies"
    assert found[-3] == f"{start} User:p-operator --operation Alter --cluster"
    assert found[-1] == f"{start} User:p-operator --operation Write --transactional-id p-redrive"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"corelate": "User:x"}, "There is no party 'corelate': the parties are correlate, archive"),
        ({"correlate": "x"}, "The principal of correlate is 'x', without a type: write User:x."),
        ({"correlate": ""}, "The principal of correlate is '', without a type"),
    ],
)
def test_a_wrong_party_or_principal_is_named(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parties.principals(SETTINGS, given)
    assert sentence in str(caught.value)
