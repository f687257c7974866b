"""The gateway on the real broker, with the real correlate job behind it; a stand-in is twin and devices."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import Ack, Response, Signal
from ackstream.jobs.archive import job
from ackstream.lake import tables
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.errors import thing_not_found
from ackstream.settings import Gateway, Kafka
from tests.gateway.browser import Browser, chromium
from tests.harness import processes
from tests.harness.gateway import LAMP, Running, TwinAndDevices, serving
from tests.harness.kafka import following
from tests.harness.ports import free_ports
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration

REQUESTS = 500
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SILENT = 100


def answer(signal: Signal) -> Any:
    """Answer as a twin with one thing does, and as a party that acknowledges what it is not told to leave."""
    topic, name = signal.envelope.topic, signal.thing_id
    if signal.path.endswith("/silent"):
        return []
    acks = [Ack(200, {"outcome": "green"}, label) for label in signal.labels if not label.startswith("late")]
    if topic.criterion == "messages":
        return [*acks, Response(200, {"you said": signal.value}, {"content-type": "application/json"})]
    if name.endswith(":nobody"):
        return [thing_not_found(name)]
    if signal.path == "/" and topic.action == "modify":
        headers = {"version": 2, "etag": '"rev:1"', "entity-revision": 1}
        return [*acks, Response(201, {"thingId": name, "policyId": name}, headers)]
    if topic.action == "retrieve":
        return [Response(304) if "if-none-match" in signal.envelope.headers else Response(200, {"thingId": name})]
    return [*acks, Response(204)] if signal.response_required else acks


@pytest.fixture(scope="module")
def running(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    kafka = Kafka(bootstrap=broker, topic_prefix=f"gateway-{time.time_ns()}-", partitions=2)
    with ExitStack() as stack:
        stack.enter_context(following(kafka))
        system = stack.enter_context(closing(System(kafka, tmp_path_factory.mktemp("gateway"), clock=True)))
        system.settings = system.settings.model_copy(update={"gateway": Gateway(port=0)})
        stack.enter_context(system.correlate(spark))
        stack.enter_context(closing(TwinAndDevices(kafka, answer)))
        url, _ = stack.enter_context(serving(system.settings))
        yield Running(system, url)


def test_queries_messages_and_errors_come_back(running: Running) -> None:
    assert running("GET", LAMP).json() == {"thingId": "org.acme:lamp"}
    assert running("GET", LAMP, headers={"if-none-match": '"rev:1"'}).status_code == 304
    told = running("POST", f"{LAMP}/inbox/messages/ask", json={"how": "are you"})
    assert (told.status_code, told.json()) == (200, {"you said": {"how": "are you"}})
    missing = running("DELETE", "/api/2/things/org.acme:nobody")
    assert (missing.status_code, missing.json()["error"]) == (404, "things:thing.notfound")
    silent = running("PUT", f"{LAMP}/attributes/silent", json=1, params={"timeout": "1s"})
    assert (silent.status_code, silent.json()["error"]) == (408, "command.timeout")


def test_without_a_response_failures_are_told_all_the_same(running: Running) -> None:
    no_response = {"response-required": "false"}
    persisted = {**no_response, "requested-acks": "twin-persisted"}
    missing = running("DELETE", "/api/2/things/org.acme:nobody", headers=persisted)
    assert (missing.status_code, missing.json()["error"]) == (404, "things:thing.notfound")
    waited = {**no_response, "requested-acks": "foo-ack,late-ack", "timeout": "2s"}

    def in_time() -> tuple[int, Any]:
        found = running("PUT", f"{LAMP}/attributes/a", json=1, headers=waited)
        # on a busy machine none may come in time: then all is as if nobody had answered
        return (found.status_code, found.json()) if found.status_code == 424 else (0, None)

    expected = {"foo-ack": {"status": 200, "headers": {}}, "late-ack": {"status": 408, "headers": {}}}
    eventually(lambda: in_time() == (424, expected), "one acknowledgement in time")


def test_what_waits_for_nothing_is_accepted_at_once(running: Running) -> None:
    # a batch of correlate on the same machine, which answers what waits
    waited = min(running("GET", LAMP).elapsed for _ in range(3))
    for headers in ({"response-required": "false"}, {"timeout": "0"}):
        found = [running("DELETE", "/api/2/things/org.acme:nobody", headers=headers) for _ in range(5)]
        assert {(answer.status_code, answer.content) for answer in found} == {(202, b"")}
        assert min(answer.elapsed for answer in found) < waited


def test_a_correlation_id_can_be_used_again_at_once(running: Running) -> None:
    found = [running("GET", LAMP, headers={"correlation-id": "again"}) for _ in range(2)]
    assert [(answer.status_code, answer.headers["correlation-id"]) for answer in found] == [(200, "again")] * 2


def test_500_wait_together_and_each_gets_its_own_answer(running: Running) -> None:
    threads = threading.active_count()
    most = 0

    async def ask(client: httpx.AsyncClient, number: int) -> httpx.Response:
        nonlocal most
        silent = number < SILENT
        found = await client.put(
            f"/api/2/things/org.acme:lamp-{number}/attributes/a",
            json=number,
            headers={
                "requested-acks": f"{'late' if silent else 'good'}:{number},twin-persisted",
                "timeout": "8s" if silent else "55s",
            },
        )
        most = max(most, threading.active_count())
        return found

    answers = asyncio.run(running.together(ask, REQUESTS))
    for number, found in enumerate(answers):
        silent = number < SILENT
        label = f"{'late' if silent else 'good'}:{number}"
        body = found.json()
        assert (found.status_code, body[label]["status"]) == ((424, 408) if silent else (200, 200))
        # on a busy machine the answer of a silent one may be late too
        assert body["twin-persisted"]["status"] in ((204, 408) if silent else (204,))
        assert {entry["headers"]["correlation-id"] for entry in body.values()} == {found.headers["correlation-id"]}
    # threads do not grow with the requests
    assert most < threads + REQUESTS // 10


def test_a_gateway_that_stops_answers_its_clients_and_the_tables_have_every_outcome(
    running: Running, spark: SparkSession
) -> None:
    names = [f"stopped-{number}" for number in range(50)]

    async def ask(client: httpx.AsyncClient, number: int) -> httpx.Response:
        headers = {"correlation-id": names[number], "requested-acks": "late:one", "timeout": "55s"}
        return await client.put(f"{LAMP}/attributes/a", json=number, headers=headers)

    def stop_when_all_wait() -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while server._exchange._requester.statistics.open < len(names) and time.monotonic() < limit:
            time.sleep(0.01)  # leaves the processor to what is waited for
        server.should_exit = True

    with serving(running.system.settings) as (url, server):
        stopping = threading.Thread(target=stop_when_all_wait)
        stopping.start()
        answers = asyncio.run(Running(running.system, url).together(ask, len(names)))
        stopping.join()
    assert {(found.status_code, found.headers["retry-after"]) for found in answers} == {(503, "1")}

    # nobody waits for them any more, and yet they are decided
    def recorded(kind: str) -> list[str] | None:
        found = [record[kind]["correlation_id"] for record in running.system.ledger() if kind in record]
        own = [identity for identity in found if identity.startswith("stopped-")]
        return own if {shown_id(identity) for identity in own} >= set(names) else None

    for identity in eventually(lambda: recorded("signal"), "all requests"):
        running.system.ack(identity, "late:one")
    eventually(lambda: recorded("outcome"), "all outcomes")
    settings = running.system.settings
    assert job.JOB.start(spark, settings, available_now=True).awaitTermination(PATIENCE_SECONDS)
    rows = tables.read(spark, settings.lake, "outcomes").where("correlation_id LIKE 'stopped-%'").collect()
    assert Counter(shown_id(row["correlation_id"]) for row in rows) == Counter(names)


def half_acknowledged(running: Running, name: str) -> str:
    """Let a request have one of its two acknowledgements in time; return its correlation-id."""

    def ask(key: str) -> str | None:
        headers = {
            "correlation-id": key,
            "requested-acks": "lamp:on,late:report",
            "timeout": "2s",
            "traceparent": TRACE,
        }
        found = running("PUT", f"{LAMP}/attributes/a", json=1, headers=headers)
        return key if found.json().get("lamp:on", {}).get("status") == 200 else None

    keys = (f"{name}-{number}" for number in count())
    return eventually(lambda: ask(next(keys)), "an acknowledgement in time")


def test_the_page_tells_of_requests_and_their_stories(running: Running) -> None:
    told = half_acknowledged(running, "told")

    def shown() -> Any:
        view = running("GET", "/live.json").json()
        return view if told in [shown_id(failure["correlation_id"]) for failure in view["failures"]] else None

    view = eventually(shown, "the failure on the page")
    (failure,) = [failure for failure in view["failures"] if shown_id(failure["correlation_id"]) == told]
    assert (failure["status"], failure["missing"]) == (424, ["late:report"])
    assert {"lamp", "late"} <= {party["name"] for party in view["parties"]}
    story = running("GET", "/story.json", params={"correlation-id": told}).json()
    first, *between, last = [(line["event"], line.get("label"), line.get("status")) for line in story["happenings"]]
    assert (first, last) == (("request", None, None), ("outcome", None, 424))
    # twin and device answer on topics of their own
    assert sorted(between) == [("acknowledgement", "lamp:on", 200), ("acknowledgement", "twin-persisted", 204)]
    assert story["happenings"][0]["traceparent"] == TRACE
    trace = running("GET", "/trace.json", params={"trace-id": TRACE}).json()
    assert told in [request["correlation_id"] for request in trace["requests"]]
    assert {request["thing_id"] for request in trace["requests"]} == {"org.acme:lamp"}


def test_the_page_shows_the_jobs_and_the_planes_while_somebody_looks(running: Running) -> None:
    def shown() -> Any:
        view = running("GET", "/live.json").json()
        letters = [letter["content"] for letter in view["planes"]["dead_letters"]]
        return view if "no acknowledgement" in letters and view["jobs"] else None

    running.system.send("acks", b"no acknowledgement")
    view = eventually(shown, "a dead letter, and a job")
    assert [job["job"] for job in view["jobs"]] == ["correlate"]
    assert sum(view["planes"]["trends"]["dead letters"]) >= 1
    story = running("GET", "/message.json", params={"message": "nobody/1"}).json()
    assert story["happenings"] == []


@pytest.mark.long
@pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian: chromium); the page is not looked at")
def test_the_page_in_a_browser(running: Running, tmp_path: Path) -> None:
    seen = half_acknowledged(running, "seen")
    with Browser(tmp_path) as browser:
        for name, width in (("desktop", 1200), ("phone", 390)):
            browser.resize(width)
            browser.open(running.url + "/")
            browser.until("document.getElementById('state').textContent === 'live'")
            # the gateway has added a part of its own
            link = f"document.querySelector('#failures a[href^=\"#{seen}%23\"]')"
            browser.until(f"{link}?.click() ?? location.hash.startsWith('#{seen}%23')")
            browser.until("document.querySelectorAll('#happenings li').length >= 4")
            story = browser.run("document.getElementById('happenings').innerText")
            assert "lamp:on" in story
            browser.run("document.querySelector('#happenings a[href^=\"#?trace=\"]').click()")
            browser.until("document.getElementById('story-of').textContent === 'Trace'")
            browser.until(f"document.getElementById('happenings').innerText.includes('{seen}')")
            assert "424" in story
            assert browser.run("document.querySelectorAll('#labels tbody tr').length") > 1
            browser.until("document.querySelectorAll('#jobs tbody tr td').length > 1")
            assert browser.run("document.querySelectorAll('.spark rect').length") > 0
            assert browser.run("document.documentElement.scrollWidth") <= width
            browser.screenshot(tmp_path / f"{name}.png")
            browser.open(running.url + "/doc")
            browser.until("document.querySelectorAll('.opblock').length > 40")
            own = "document.querySelector('#operations-Sender-get_whoami "
            browser.run(f"{own}.opblock-summary-control').click()")
            for button in (".try-out__btn", ".execute"):
                browser.until(f"{own}{button}') !== null")
                browser.run(f"{own}{button}').click()")
            browser.until(f"{own}.live-responses-table tbody .response-col_status')?.textContent.includes('200')")
            assert browser.run("document.documentElement.scrollWidth") <= width
            browser.screenshot(tmp_path / f"{name}-doc.png")
        assert browser.messages == []


def test_the_command_serves_until_it_is_told_to_stop(running: Running) -> None:
    command = [sys.executable, "-c", "from ackstream.cli.main import app; app()", "gateway"]
    environment = {**processes.environment(running.system.settings), "ACKSTREAM_GATEWAY_PORT": str(free_ports(1)[0])}
    url = f"http://127.0.0.1:{environment['ACKSTREAM_GATEWAY_PORT']}"
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if url in line:
                break
        assert Running(running.system, url)("GET", LAMP).status_code == 200
        process.terminate()
        rest = process.stderr.read()
        assert (process.wait(timeout=PATIENCE_SECONDS), "Traceback" in rest) == (0, False)
