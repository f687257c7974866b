from __future__ import annotations

import json
from functools import partial

import pytest

from ackstream.gateway.access.passwords import matches
from ackstream.kafka import parties, topics
from tests.cli import commands


@pytest.fixture(autouse=True)
def prefixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKSTREAM_KAFKA_TOPIC_PREFIX", "p-")


run = partial(commands.run, "acls")


def test_the_commands_of_all_parties_are_printed():
    lines = run().stdout.splitlines()
    assert all(line.startswith("kafka-acls.sh --bootstrap-server localhost:9092 --add ") for line in lines)
    assert "--allow-principal User:p-correlate --operation Write --topic p-replies" in "\n".join(lines)


def test_one_party_may_have_another_principal():
    lines = run("requester=User:CN=web", "--party", "requester").stdout.splitlines()
    assert [line.partition("--allow-principal ")[2] for line in lines] == [
        "User:CN=web --operation Read --topic p-replies",
        "User:CN=web --operation Write --topic p-signals",
    ]


def test_as_json_each_grant_is_an_object():
    lines = [
        json.loads(line) for line in run("requester=User:CN=web", "--party", "requester", "--json").stdout.splitlines()
    ]
    about = {"party": "requester", "principal": "User:CN=web", "resource": "topic", "prefixed": False}
    assert lines == [
        about | {"name": "p-replies", "operation": "READ"},
        about | {"name": "p-signals", "operation": "WRITE"},
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--party", "requestor"], "There is no party 'requestor'"),
        (["requestor=User:x"], "There is no party 'requestor'"),
        (["requester"], "The principal of requester is '', without a type"),
    ],
)
def test_what_is_wrong_is_a_sentence(arguments: list[str], sentence: str):
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_they_are_set_on_request_and_what_goes_beyond_is_listed(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def apply(_settings: object, who: dict[str, str], names: list[str]) -> tuple[int, list[str]]:
        asked.append((who["requester"], names))
        return 2, ["User:p-requester: ALLOW READ on TOPIC other (LITERAL)"]

    monkeypatch.setattr(topics, "ensure_topics", lambda _: ["p-signals"])
    monkeypatch.setattr(parties, "apply_acls", apply)
    result = run("--party", "requester", "--apply")
    assert asked == [("User:p-requester", ["requester"])]
    assert result.stdout == "Topics: 1 of them new. ACLs: 2 of them new.\n"
    assert "which stay unchanged:\n  User:p-requester: ALLOW READ on TOPIC other" in result.stderr
    (further,) = json.loads(run("--party", "requester", "--apply", "--json").stdout)["further"]
    assert further == "User:p-requester: ALLOW READ on TOPIC other (LITERAL)"


def test_the_hash_of_a_password_is_that_of_the_first_line_of_standard_input() -> None:
    result = commands.run("password", stdin="sesame\nopen\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert matches("sesame", result.stdout.strip())
    assert "sesame" not in result.stdout


def test_a_password_is_never_an_argument_and_not_empty() -> None:
    assert commands.run("password", "--password", "sesame").exit_code == 2
    result = commands.run("password", stdin="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "The password is empty" in result.stderr


def test_the_topics_are_listed_with_those_who_write_and_read_them():
    result = commands.run("topics", "--json")
    rows = {row["topic"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert rows.keys() == {f"p-{name}" for name in topics.TOPICS}
    assert rows["p-replies"]["written_by"] == "correlate"
    assert rows["p-acks"]["read_by"] == "correlate"
    assert "p-queue-deliveries" in commands.run("topics").stdout


def test_the_topics_of_applications_are_listed_by_their_patterns(monkeypatch):
    monkeypatch.setenv("ACKSTREAM_CORRELATE_REQUEST_TOPICS", '["orders.*"]')
    rows = list(map(json.loads, commands.run("topics", "--json").stdout.splitlines()))
    assert rows[-1] == {
        "topic": "orders.*",
        "written_by": "applications",
        "read_by": "correlate",
        "about": "Requests or acknowledgements of any kind.",
    }


def test_the_asyncapi_document_is_that_of_the_settings():
    document = json.loads(commands.run("topics", "--asyncapi").stdout)
    assert document["asyncapi"] == "3.0.0"
    assert document["channels"]["signals"]["address"] == "p-signals"
