"""ackstream beside its peers, the same join in one run: throughput, latency, recovery, processor time, memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import common, latency, throughput
from benchmarks.common import ROUNDS
from benchmarks.contenders.programs import CONTENDERS, STANDBY, Contender, Place, versions
from benchmarks.contenders.running import Running
from benchmarks.latency import TIMEOUT, Case
from benchmarks.progress import medians
from benchmarks.replies import recovery
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.common import Bench

SAMPLE_SECONDS = 0.5
SETTLING = 5.0
"""Seconds from the last deadline of what is measured until the kill: what answers late has answered by then."""
STANDBY_SECONDS = 90.0
METHOD = (
    "Each contender is a program of its own, several processes where it says so, with empty state; they take turns. "
    "Backlog: all messages are in Kafka before it starts; warm rate = slope by least squares of the broker's times of "
    "the replies to complete requests, the first 200,000 messages left out; whole-run rate = messages / time from the "
    "start of the program to the last such reply; processor time of the program and of the broker over the same span "
    "as the warm rate; memory: the most of all processes together, shared pages counted once. Live: as in the "
    "benchmark latency, from another process; each reply is compared with what it has to be, as in the backlog. Then "
    "all processes are killed by SIGKILL and started at once, or a standby replaces them: 'silent' is the "
    "longest time without a reply, 'caught_up' the time from the kill until the last reply that came later than "
    "twice, and half a second later than, 95 % of those before the kill."
)


@dataclass(frozen=True)
class Size:
    """How much data, and how long each phase of the live load takes, in seconds."""

    requests: int
    batch: int
    rounds: int
    live: Case
    after_kill: float


FULL = Size(242_000, 100_000, ROUNDS, Case("500/s", 500, 20, 30), 45)
SMALL = Size(3_000, 2_000, 1, Case("50/s", 50, 5, 5), 5)


def measure(bench: Bench) -> dict[str, Any]:
    """Let the contenders take turns, with a backlog and with live load.

    :raises RuntimeError: in the small run, which is the check: a reply is wrong, missing or contradicted
    """
    size = SMALL if bench.small else FULL
    workload = Workload(size.requests, timeout=throughput.TIMEOUT)
    data = bench.settings("peers")
    for peer in CONTENDERS:
        # jars are fetched, and programs compiled, before anything is measured
        peer.commands(Place(data, "made", bench.directory / "made", bench.directory / "classes"))
    throughput.fill(bench, data, workload)
    rounds: dict[str, list[dict[str, Any]]] = {peer.name: [] for peer in CONTENDERS}
    turns = _Turns(bench)
    for number in range(size.rounds):
        for peer in CONTENDERS:
            one = turns.take(
                f"Round {number + 1}", peer, partial(throughput.program, bench, data, workload, size.batch, peer)
            )
            rounds[peer.name] += [] if one is None else [one]
    contenders = {}
    for peer in CONTENDERS:
        live = turns.take("Live", peer, partial(_live, bench, peer, size))
        if live is not None:
            contenders[peer.name] = _summary(rounds[peer.name]) | {"live": live, "rounds": rounds[peer.name]}
    # until it has rehearsed, while the other one has both cores
    longer = replace(size, live=replace(size.live, warm_up=size.live.warm_up + STANDBY_SECONDS))
    standby = turns.take("Live", STANDBY, partial(_live, bench, STANDBY, longer))
    figures = {
        "method": METHOD,
        "versions": versions(),
        "messages": workload.messages,
        "requests": workload.requests,
        "rounds": size.rounds,
        "rate": size.live.rate,
        "contenders": contenders,
        "standby": standby,
        "failed": turns.failed,
    }
    wrong = list(turns.failed)
    wrong += [name for name, one in contenders.items() if not (one["as_expected"] and one["live"]["as_expected"])]
    if wrong:
        bench.say(f"[red]Not all replies are right: {', '.join(wrong)}[/red]")
        if bench.small:
            raise RuntimeError(f"Not all replies are right: {', '.join(wrong)}")
    else:
        bench.say(f"Every reply of all {len(contenders)} contenders is right, before and after kill -9")
    return figures


class _Turns:
    """Measures contenders; one that fails is left out from then on, and the others are measured.

    :ivar failed: why, by name
    """

    def __init__(self, bench: Bench) -> None:
        self.failed: dict[str, str] = {}
        self._bench = bench

    def take(self, what: str, peer: Contender, measured: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return figures, if there are any."""
        if peer.name in self.failed:
            return None
        try:
            figures = measured()
        except Exception as error:  # noqa: BLE001 - half an hour of the others' figures would be lost
            self.failed[peer.name] = repr(error)[:500]
            self._bench.say(f"[red]{what}, {peer.name}: {self.failed[peer.name]}[/red]")
            return None
        self._bench.say(f"{what}, {peer.name}: {json.dumps(common.rounded(figures))}")
        return figures


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    figures = ("processor_microseconds", "broker_microseconds", "memory_bytes")
    return {
        "messages_a_second": medians([entry["rates"] for entry in rounds]),
        **{name: statistics.median(entry[name] for entry in rounds) for name in figures},
        "as_expected": all(entry["as_expected"] for entry in rounds),
    }


def _live(bench: Bench, peer: Contender, size: Size) -> dict[str, Any]:
    """Send requests at a fixed rate; after a while kill the contender and start it again."""
    case = size.live
    settings = bench.settings("live")
    name = f"peer-{time.monotonic_ns()}"
    out = bench.directory / f"{name}.json"
    before = case.warm_up + case.seconds + TIMEOUT + SETTLING
    command = latency.load(settings, out, case.rate, before + size.after_kill, heartbeats=peer.heartbeats)
    place = Place(settings, name, bench.directory / name, bench.directory / "classes")
    with ExitStack() as stack:
        running = stack.enter_context(closing(Running(peer, place)))
        load = subprocess.Popen(command, cwd=common.ROOT)
        try:
            over = None
            while over is None or time.time() < over:
                running.check()
                running.sample()
                time.sleep(SAMPLE_SECONDS)
                if load.poll() is not None:
                    raise RuntimeError(f"{peer.name} does not answer: {running.log.read_text('utf-8')[-3000:]}")
                if over is None and bench.offsets.count(settings.kafka.topic("replies")):
                    # the first request is answered, and the load begins
                    over = time.time() + before
                    if peer.standby is not None:
                        stack.enter_context(closing(Running(replace(peer, commands=peer.standby), place)))
            killed = time.time()
            running.close()
            if peer.standby is None:
                running.start()
            while load.poll() is None:
                if peer.standby is None:
                    running.check()
                time.sleep(SAMPLE_SECONDS)
        finally:
            load.kill()
            load.wait()
    report = json.loads(out.read_text("utf-8"))
    found = latency.evaluate(report, case)
    began = report["sent"][1] + case.warm_up
    first, last = running.between(began, began + case.seconds)
    used = [usage.memory for usage in running.used if began <= usage.time <= killed]
    counts = found["counts"]
    return {
        **{figure: found[figure] for figure in ("reply", "last_ack", "late", "windows", "counts")},
        "cores": (last.processor - first.processor) / (last.time - first.time),
        "broker_cores": (last.broker - first.broker) / (last.time - first.time),
        "memory_bytes": max(used),
        "kill": recovery(_replies(report, began), killed),
        "as_expected": not any(counts.get(figure) for figure in ("wrong", "contradicted", "unknown", "unanswered")),
    }


def _replies(report: dict[str, Any], began: float) -> list[tuple[float, float]]:
    """Return for each reply, from a time on, when it could have come at the earliest, and when it came."""
    entries = zip(*(report[name] for name in ("sent", "last_ack", "replied", "completed_by")), strict=True)
    return [
        (last_ack if completed_by == "acknowledgements" else sent + TIMEOUT, replied)
        for sent, last_ack, replied, completed_by in entries
        if replied and sent >= began
    ]


if __name__ == "__main__":
    common.main("peers", measure)
