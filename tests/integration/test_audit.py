"""The audit on the real broker and in its table: the gateway writes it, the archive keeps each record once."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import httpx
import pytest
from websockets.sync.client import connect

from ackstream.gateway.access.passwords import hash_password
from ackstream.jobs.archive import job
from ackstream.lake import reading
from ackstream.settings import Gateway, Kafka, Lake, Settings
from tests.harness.gateway import LAMP, serving
from tests.harness.issuers import IssuerServer, issuing
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration

HASH = hash_password("ada's")
RULES = """
[[access]]
subjects = ["user:ada"]
things = ["org.acme:*"]
path = "/attributes"
grant = ["READ", "WRITE"]

[[access]]
roles = ["jwt:operator"]
grant = ["READ", "WRITE"]
"""
USERS = f'[users]\nada = "{HASH}"\n'
NO_RESPONSE = {"response-required": "false"}


class Audited:
    """A gateway whose users, rules and issuer the test changes."""

    def __init__(self, settings: Settings, url: str, issuer: IssuerServer) -> None:
        self.settings, self.url, self.issuer = settings, url, issuer

    def put(self, path: str = "/attributes/a", **options: Any) -> int:
        given = {"json": 1, "params": NO_RESPONSE, "timeout": PATIENCE_SECONDS, **options}
        return httpx.put(f"{self.url}{LAMP}{path}", **given).status_code

    def bearer(self, kid: str, **claims: Any) -> dict[str, Any]:
        return {"headers": {"authorization": f"Bearer {self.issuer.token(kid, **claims)}"}}

    @property
    def sent(self) -> list[str]:
        return [record.key.decode() for record in records(self.settings.kafka, "audit")]

    def rows(self) -> list[dict[str, Any]]:
        table = deltalake.DeltaTable(self.settings.lake.table("audit")).to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda row: row["batch_id"])


@pytest.fixture
def audited(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Audited]:
    monkeypatch.setattr("ackstream.settings.gateway.LOOK_SECONDS", 0.05)
    path = tmp_path / "access.toml"
    path.write_text(USERS + RULES, "utf-8")
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    with ExitStack() as stack:
        issuer = stack.enter_context(issuing("one"))
        gateway = Gateway(port=0, access_file=path, issuers=[issuer.settings(roles=["roles"])])
        settings = Settings(kafka=kafka, lake=lake, gateway=gateway)
        url, _ = stack.enter_context(serving(settings))
        yield Audited(settings, url, issuer)


def archive(spark: SparkSession, settings: Settings) -> None:
    assert job.JOB.start(spark, settings, available_now=True).awaitTermination(PATIENCE_SECONDS)


ADA = ("ada", "ada's")


def test_who_did_what_and_who_was_refused_is_a_row_each_whatever_is_repeated(
    spark: SparkSession, audited: Audited
) -> None:
    assert audited.put(auth=ADA) == 202
    assert audited.put("/features/f", auth=ADA) == 403
    assert audited.put(auth=("ada", "wrong")) == 401
    assert audited.put("/features/f", **audited.bearer("one", roles=["operator"])) == 202
    assert audited.put("/features/f", **audited.bearer("one")) == 404
    assert audited.put(**audited.bearer("one", exp=1)) == 401
    address = f"ws{audited.url.removeprefix('http')}/ws/2"
    with connect(address, additional_headers={"authorization": audited.bearer("one")["headers"]["authorization"]}):
        pass
    wrong = [audited.put(auth=("ada", f"wrong {number}")) for number in range(2)]
    assert wrong == [401, 401]
    eventually(lambda: len(audited.sent) == 9, "the records")
    # written twice, and read again with a new checkpoint
    archive(spark, audited.settings)
    shutil.rmtree(audited.settings.lake.checkpoint(job.NAME))
    archive(spark, audited.settings)
    rows = audited.rows()
    assert [row["batch_id"] for row in rows] == list(range(1, 10))
    (run,) = {row["query_id"] for row in rows}
    assert set(audited.sent) == {run}
    first, refused, failed, operator, hidden, expired, opened, *more = rows
    signals = [dict(record.headers)["correlation-id"].decode() for record in records(audited.settings.kafka, "signals")]
    assert {first["correlation_id"], operator["correlation_id"]} == set(signals)
    assert (first["subject"], first["allowed"], first["thing_id"]) == ("user:ada", True, "org.acme:lamp")
    assert (first["address"], first["method"], first["command"]) == ("127.0.0.1", "PUT", "twin/commands/modify")
    assert (refused["allowed"], refused["status"], refused["reason"]) == (False, 403, "WRITE of /features/f")
    assert (failed["event"], failed["subject"], failed["status"]) == ("sign-in", "user:ada", 401)
    assert (operator["subject"], operator["roles"], operator["allowed"]) == ("jwt:robot", ["jwt:operator"], True)
    assert (hidden["status"], hidden["roles"]) == (404, [])
    assert (expired["event"], expired["reason"]) == ("sign-in", "The token is not accepted: Signature has expired.")
    assert (opened["method"], opened["allowed"], opened["subject"]) == ("WEBSOCKET", True, "jwt:robot")
    assert [(row["status"], row["count"]) for row in more] == [(401, 1), (401, 1)]
    asked = reading.ask(spark, audited.settings.lake, "refusals").collect()
    assert sum(row["attempts"] for row in asked) == 6


def test_users_rules_and_keys_change_while_the_gateway_runs_and_a_wrong_file_does_not(audited: Audited) -> None:
    path = audited.settings.gateway.access_file
    assert path is not None
    assert audited.put(auth=ADA) == 202
    path.write_text(f'[users]\nada = "hunter2"\n{RULES}', "utf-8")
    eventually(lambda: len(audited.sent) == 2, "the record of the wrong file")
    assert audited.put(auth=ADA) == 202
    path.write_text(f'[users]\nbob = "{HASH}"\n{RULES}', "utf-8")
    eventually(lambda: audited.put(auth=ADA) == 401, "the user to be removed")
    assert audited.put(auth=("bob", "ada's")) == 404
    # the issuer changes its key
    audited.issuer.keys = {}
    assert audited.put("/features/f", **audited.bearer("one", roles=["operator"])) == 202


def test_the_failed_sign_ins_that_were_counted_are_recorded_when_the_gateway_stops(
    kafka: Kafka, tmp_path: Path
) -> None:
    path = tmp_path / "access.toml"
    path.write_text(USERS + RULES, "utf-8")
    settings = Settings(kafka=kafka, gateway=Gateway(port=0, access_file=path))
    with serving(settings) as (url, _), httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        for number in range(8):
            assert client.get(LAMP, auth=("ada", f"wrong {number}")).status_code in (401, 429)
    values = [json.loads(record.value)["audit"] for record in records(kafka, "audit")]
    # a machine that is slow may need more than the time of an address
    assert sum(value["count"] for value in values) == 8
    assert len(values) < 8


def test_an_archive_of_before_there_was_an_audit_goes_on_and_reads_it_from_its_start(
    spark: SparkSession, audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audited.put(auth=ADA) == 202
    eventually(lambda: len(audited.sent) == 1, "the record")
    with monkeypatch.context() as patch:
        patch.setattr(job, "SOURCES", ("ledger",))
        old = replace(job.JOB, reads=("ledger",))
        assert old.start(spark, audited.settings, available_now=True).awaitTermination(PATIENCE_SECONDS)
    assert audited.rows() == []
    archive(spark, audited.settings)
    assert [row["subject"] for row in audited.rows()] == ["user:ada"]
