"""The devices of the demo, the commands to them, the checks that all of it adds up, and the summary.

Most devices are prompt, some slow or silent; one refuses, one is gone. The wheel includes this file, and
``ackstream demo`` runs it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.text import Text

from ackstream.cli.monitoring import STYLES
from ackstream.cli.terminal import PlainTable, data, span
from ackstream.client import Ack, After, Answer, Command, Requester, Signal
from ackstream.client.requests.replies import Reply, read_reply
from ackstream.kafka.clients import spark_options
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.observe.outcomes import percentiles, verdict
from ackstream.protocol.errors import thing_not_found
from ackstream.protocol.record_headers import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from rich.console import Console

    from ackstream.settings import Settings

RECEIVED, DONE = LABELS = ("fleet:received", "fleet:done")
TIMEOUT_SECONDS = 5.0
"""The timeout of each command."""

FULL = 507
SOON = (0.02, 0.4)
REFRESH_SECONDS = 0.25
PERCENTILES = (0.5, 0.95, 0.99)
EXAMPLES = 5
"""Number of wrong ids that a failed check names."""


class Habit(NamedTuple):
    """How some devices answer.

    :ivar devices: the number of devices in a fleet; 0: all others
    :ivar done: when they acknowledge done, from and to seconds after the command
    """

    about: str
    devices: int
    received: bool = True
    done: tuple[tuple[float, float], ...] = (SOON,)
    status: int = 200


HABITS = {
    "prompt": Habit("acknowledges received at once and done soon after", 0),
    "slow": Habit("takes seconds to acknowledge done", 4, done=((1.0, 0.7 * TIMEOUT_SECONDS),)),
    "late": Habit("acknowledges done after the deadline", 2, done=((TIMEOUT_SECONDS + 0.5, TIMEOUT_SECONDS + 2),)),
    "forgetful": Habit("never acknowledges done", 2, done=()),
    "silent": Habit("never acknowledges anything", 1, received=False, done=()),
    "stuttering": Habit("acknowledges done twice; the second is late, as the first decides", 1, done=(SOON, SOON)),
    "refusing": Habit(f"acknowledges done with status {FULL}", 1, status=FULL),
    "gone": Habit("its gateway acknowledges with an error", 1),
}


def fleet(size: int) -> dict[str, str]:
    """Return at least 12 devices, of all habits, by their thing ids."""
    unusual = [name for name, habit in HABITS.items() for _ in range(habit.devices)]
    names = [*unusual, *["prompt"] * (size - len(unusual))]
    return {f"org.acme.fleet:truck-{number:02d}": name for number, name in enumerate(names, start=1)}


def respond(devices: Mapping[str, str], signal: Signal) -> Answer:
    """Acknowledge a command as its device would; the same command is answered in the same way."""
    name = devices.get(signal.thing_id)
    if name is None:
        return None
    if name == "gone":
        return thing_not_found(signal.thing_id)
    habit, chance = HABITS[name], random.Random(signal.correlation_id)
    content = {"applied": signal.value} if habit.status < FULL else {"error": "storage.full"}
    done = Ack(habit.status, content, DONE)
    received = [Ack(label=RECEIVED)] if habit.received else []
    return (*received, *(After(chance.uniform(*seconds), done) for seconds in habit.done)) or None


@dataclass
class Sent:
    """A command on its way: the reply, and the milliseconds from sending it to the reply."""

    future: Future[Reply]
    latency: int = 0

    @property
    def reply(self) -> Reply | None:
        """The reply, if there was one."""
        return None if self.future.exception() else self.future.result()


def send_all(
    requester: Requester,
    things: Sequence[str],
    number: int,
    rate: float,
    console: Console,
    healthy: Callable[[], None],
) -> dict[str, Sent]:
    """Send commands to the things in turn, ``rate`` per second, and wait for all replies.

    :param healthy: polled meanwhile; raises once waiting is pointless
    :returns: the commands by their correlation-ids
    """
    found: dict[str, Sent] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Commands sent", total=number)
        started = time.monotonic()
        for count in range(number):
            time.sleep(max(0.0, started + count / rate - time.monotonic()))
            correlation_id, sent_at = f"demo-{count:05d}", time.monotonic()
            command = Command.modify_attribute(things[count % len(things)], "speed", count % 90)
            sent = Sent(requester.send(command, acks=LABELS, timeout=TIMEOUT_SECONDS, correlation_id=correlation_id))

            def end(_: object, sent: Sent = sent, sent_at: float = sent_at) -> None:
                sent.latency = round((time.monotonic() - sent_at) * 1000)

            sent.future.add_done_callback(end)
            found[correlation_id] = sent
            progress.advance(task)
            if count % rate < 1:
                healthy()
        progress.update(task, description="Waiting for replies")
        while wait([sent.future for sent in found.values()], timeout=REFRESH_SECONDS).not_done:
            healthy()
        progress.update(task, description="All replies received")
    console.print()
    return found


# -- checks ------------------------------------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """Everything to compare: sent and received, the topics replies and acks, and rows of the tables.

    Requests are given by their correlation-ids, acknowledgements as topic-partition-offset.
    """

    sent: Sequence[str]
    received: Sequence[Reply]
    replies: Sequence[Reply]
    acks: Sequence[str]
    signal_rows: Sequence[str]
    outcome_rows: Sequence[Reply]
    ack_rows: Sequence[str]
    dead_letters: Sequence[str]


class Finding(NamedTuple):
    """One check, and the ids for which it does not hold."""

    text: str
    wrong: Sequence[str]


def check(evidence: Evidence) -> list[Finding]:
    """Compare sent commands, acknowledgements, replies and tables."""
    sent, received, outcomes = evidence.sent, evidence.received, evidence.outcome_rows
    answers = {(reply.correlation_id, reply.reply_id, reply.data) for reply in evidence.replies}
    several = [key for key, count in Counter(key for key, *_ in answers).items() if count > 1]
    decided = {row.correlation_id: _answer(row) for row in outcomes}
    other = [reply.correlation_id for reply in received if decided.get(reply.correlation_id) != _answer(reply)]
    return [
        Finding(
            f"{len(sent):,} commands sent = {len(received):,} replies received = {len(outcomes):,} rows in outcomes"
            f" = {len(evidence.signal_rows):,} rows in signals",
            [
                *_differing(sent, [reply.correlation_id for reply in received]),
                *_differing(sent, [row.correlation_id for row in outcomes]),
                *_differing(sent, evidence.signal_rows),
                *evidence.dead_letters,
            ],
        ),
        Finding(
            f"{len(evidence.acks):,} acknowledgements, responses and errors of devices and twin ="
            f" {len(evidence.ack_rows):,} rows in acknowledgements",
            _differing(evidence.acks, evidence.ack_rows),
        ),
        Finding("no command has two different answers; each reply is the one in outcomes", [*several, *other]),
    ]


def _differing(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return the ids that are missing, and those that are duplicates."""
    expected, present = Counter(wanted), Counter(found)
    return [*(expected - present), *(present - expected)]


def _answer(reply: Reply) -> Any:
    statuses = {label: ack.status for label, ack in reply.acks.items()}
    return reply.reply_id, reply.status, reply.completed_by, statuses


def gather(spark: SparkSession, settings: Settings, sent: Mapping[str, Sent]) -> Evidence:
    """Read topics and tables; requests of others, such as those sent over HTTP meanwhile, are left out."""

    def rows(table: str, *columns: str) -> list[Any]:
        found = tables.read(spark, settings.lake, table).select("correlation_id", *columns).collect()
        # a row without an id may be of the demo
        return [tuple(row) for row in found if row[0] is None or row[0] in sent]

    def records(*names: str) -> list[tuple[str, Reply | None]]:
        topics = ",".join(map(settings.kafka.topic, names))
        options = {**spark_options(settings.kafka), "subscribe": topics, "includeHeaders": "true"}
        found = []
        for row in spark.read.format("kafka").options(**options).load().collect():
            headers = {name: bytes(value or b"") for name, value in row.headers or ()}
            if headers.get(CORRELATION_ID, b"").decode() in sent:
                reply = read_reply(headers.items(), bytes(row.value or b""), 0)
                found.append((f"{row.topic}-{row.partition}-{row.offset}", reply))
        return found

    decided = rows("outcomes", "reply_id", "status", "completed_by", "reply")
    return Evidence(
        sent=list(sent),
        received=[reply for each in sent.values() if (reply := each.reply)],
        replies=[reply for _, reply in records("replies") if reply],
        acks=[place for place, _ in records("acks", "twin-acks")],
        signal_rows=[key for (key,) in rows("signals")],
        outcome_rows=[
            Reply(key, reply_id, status, completed_by, (reply or "").encode())
            for key, reply_id, status, completed_by, reply in decided
        ],
        ack_rows=["-".join(map(str, names)) for _, *names in rows("acknowledgements", "topic", "partition", "offset")],
        dead_letters=[f"dead letter {key}" for (key,) in rows("dead_letters")],
    )


# -- the summary -------------------------------------------------------------------------------------------------------


def title(console: Console, text: str) -> None:
    """Print a heading."""
    # where the output is no terminal, a line has no end
    line = Rule(Text(text, style="bold"), align="left", style="dim")
    console.print(line, width=min(console.width, 100))


def show(
    console: Console, settings: Settings, sent: Mapping[str, Sent], devices: Mapping[str, str], rows: Mapping[str, int]
) -> None:
    """Print how the commands ended, by verdict and by habit, and the row counts of the tables."""
    latencies: dict[str, list[int]] = {how: [] for how in STYLES}
    answers: dict[str, Counter[str]] = {habit: Counter() for habit in HABITS}
    for each in sent.values():
        if reply := each.reply:
            how = verdict(reply.status, reply.completed_by)
            latencies[how].append(each.latency)
            answers[devices[reply.envelope.topic.thing_id]][f"{how} {reply.status}"] += 1
    ended = PlainTable("", "commands", "share", *(f"p{round(each * 100)}" for each in PERCENTILES), right=range(1, 6))
    for how, style in STYLES.items():
        found = latencies[how]
        spans = map(span, percentiles(found, *PERCENTILES))
        ended.add_row(Text(how, style=style), f"{len(found):,}", f"{len(found) / len(sent):.1%}", *spans)
    if lost := len(sent) - sum(map(len, latencies.values())):
        ended.add_row(Text("without a reply", style="bold red"), f"{lost:,}", f"{lost / len(sent):.1%}")
    ended.add_row("sent", f"{len(sent):,}")
    behaved = PlainTable("devices", "", "behaviour", "answers", right=[1])
    for habit, (about, *_) in HABITS.items():
        counts = ", ".join(f"{count:,} {how}" for how, count in answers[habit].most_common())
        number = sum(each == habit for each in devices.values())
        behaved.add_row(habit, str(number), Text(about, style="dim"), counts)
    stored = PlainTable("table", "rows", "", right=[1])
    for name, number in rows.items():
        stored.add_row(name, f"{number:,}", Text(ALL_TABLES[name].comment, style="dim"))
    title(console, "How the commands ended")
    console.print(ended, "", behaved, "", sep="\n")
    title(console, f"Delta tables in {settings.lake.path}")
    created = f"{len(devices):,} of the rows in signals and outcomes are the creations of the things."
    console.print(stored, data(created), "", sep="\n")


def show_findings(console: Console, findings: Sequence[Finding], *, caught_up: bool) -> None:
    """Print each check, and for a failed one some of the wrong ids."""
    title(console, "Does it add up?")
    if not caught_up:
        console.print(Text("The jobs did not catch up in time; their remaining work is missing below.", "red"))
    for text, wrong in findings:
        console.print(Text.assemble(("NO   ", "bold red") if wrong else ("yes  ", "green"), text))
        if wrong:
            console.print(data(f"     {len(wrong):,} differ: {', '.join(wrong[:EXAMPLES])}", "red"))
    console.print()
