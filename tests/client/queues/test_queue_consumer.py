"""A consumer with Kafka's edge replaced: what arrives, what can be fetched, and what the broker takes."""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import CorruptRecordError, KafkaTimeoutError, TopicAuthorizationFailedError

from ackstream.client.core import lifetime
from ackstream.client.queues import _queue_link as queue_link
from ackstream.client.queues.queue_consumer import QueueConsumer
from ackstream.client.queues.queued_messages import FlowQos, QueueMessage
from ackstream.client.reading.samples import Sample
from ackstream.errors import BadParameterError, InconsistentQosError, NotConnectedError, StartError
from ackstream.protocol import queues
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, NotSettled, SettleMessages, Unbind, Unbound
from ackstream.settings import Lake
from tests.client.connections import FakeConnection
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ackstream.protocol.queues import QueueAnswer, QueueRequest


class Service:
    """Binds the consumer to the queue ``q``, and keeps what it sends; a test may add answers and failures."""

    def __init__(self) -> None:
        self.sent: list[QueueRequest] = []
        self.answers: deque[QueueAnswer] = deque()
        self.failures: deque[BaseException] = deque()
        self.rejections: deque[Exception] = deque()
        self.fetch: Callable[[Sequence[MessageDelivered]], dict[str, Sample]] = _all
        self.absence = "is not there"
        self.offline: set[int] = set()
        self.session = 0
        self.backlog = 100
        self.lease_ms = 0
        self.session_ms = 30_000
        self.away = False

    def deliver(self, *numbers: int, partition: int = 0, **more: Any) -> None:
        """Deliver messages named by their number, which is that of the answer too."""
        self.answers += [
            MessageDelivered("q", "A", self.session, number, f"m{number}", "t", partition, number, 0, 1, **more)
            for number in numbers
        ]

    def settled(self, outcome: str = "accepted") -> list[str]:
        """Return the messages that Kafka was sent as settled so."""
        records = [record for record in self.sent if isinstance(record, SettleMessages)]
        return [message for record in records if record.outcome == outcome for message in record.messages]

    # -- the edge ------------------------------------------------------------------------------------------------------

    def send(self, value: bytes) -> Any:
        record = queues.read(value)
        if self.rejections and isinstance(record, Alive) and record.handed_out:
            raise self.rejections.popleft()
        self.sent.append(record)
        if isinstance(record, Alive) and record.session != self.session and not self.away:
            self.answers.append(Unbound("q", "A", record.session, "replaced"))
        if isinstance(record, Bind) and record.session != self.session:
            self.session = record.session
            self.answers.append(Bound("q", "A", self.session, 1, self.backlog, self.lease_ms, self.session_ms, 60_000))
        failure = self.failures.popleft() if self.failures and isinstance(record, SettleMessages) else None
        return SimpleNamespace(
            get=lambda **_: None,
            add_callback=lambda report: None if failure else report(None),
            add_errback=lambda report: report(failure) if failure else None,
        )

    def read(self, _timeout_ms: int) -> list[Any]:
        threading.Event().wait(0.002)
        found = []
        while self.answers:
            found.append(SimpleNamespace(value=queues.write(self.answers.popleft())))
        return found

    def close(self) -> None:
        """Do nothing."""


def _all(deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
    return {one.message: _sample(b"x") for one in deliveries}


def _sample(value: bytes) -> Sample:
    return Sample("p", "orders", b"k", value, {}, 0, 1, 0, 0, None)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(queue_link, "MessageFetcher", lambda *_: service)
    monkeypatch.setattr(queue_link, "BACKOFF_SECONDS", 0.01)
    return service


@pytest.fixture
def consume(service: Service) -> Iterator[Callable[..., QueueConsumer]]:
    assert service
    made: list[QueueConsumer] = []

    def create(**options: Any) -> QueueConsumer:
        made.append(QueueConsumer(FakeConnection(link=service), queue="q", name="A", **options))
        return made[-1]

    yield create
    for consumer in made:
        consumer.close()


def test_a_message_that_cannot_be_read_goes_back_and_the_others_are_handed_out(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    service.fetch = lambda deliveries: _all([one for one in deliveries if one.message != "m3"])
    consumer = consume()
    service.deliver(2, 3, 4)
    received = [consumer.receive(PATIENCE_SECONDS) for _ in range(2)]
    assert [message and message.id for message in received] == ["m2", "m4"]
    (refusal,) = [record for record in service.sent if isinstance(record, SettleMessages)]
    assert (refusal.messages, refusal.outcome, refusal.unavailable) == (("m3",), "rejected", True)
    assert consumer.alive
    assert (consumer.statistics.unavailable, consumer.statistics.rejected) == (1, 0)


def test_a_consumer_whose_queue_does_not_answer_is_disconnected_until_it_does(
    service: Service, consume: Callable[..., QueueConsumer], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(lifetime, "LASTING_SECONDS", 0.05)
    states: list[str] = []
    service.session_ms = 900
    consume(on_connection=states.append)
    eventually(lambda: states == ["connected"], "the first state")
    service.away = True
    eventually(lambda: states[1:] == ["disconnected"], "the queue is away")
    service.away = False
    eventually(lambda: states[2:] == ["connected"], "the queue is back")
    assert "The consumer A of the queue q is disconnected" in caplog.text


def test_messages_of_a_partition_without_a_leader_hold_up_no_others_and_follow_once_it_has_one(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    away, asked = {0}, list[int]()

    def fetch(deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
        asked.append(len(deliveries))
        service.offline = away & {one.partition for one in deliveries}
        return _all([one for one in deliveries if one.partition not in service.offline])

    service.fetch = fetch
    consumer = consume()
    service.deliver(2)
    eventually(lambda: asked, "a fetch")
    service.deliver(3, 4, partition=1)
    received = [consumer.receive(PATIENCE_SECONDS) for _ in range(2)]
    assert [message and message.id for message in received] == ["m3", "m4"]
    assert (consumer.receive(0.05), service.settled("rejected")) == (None, [])
    away.clear()
    message = consumer.receive(PATIENCE_SECONDS)
    assert message is not None
    assert message.id == "m2"


def test_a_lake_that_cannot_be_read_is_an_error_of_the_constructor(
    service: Service, consume: Callable[..., QueueConsumer], tmp_path: Path
) -> None:
    (log := tmp_path / "messages" / "_delta_log").mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("these are my notes")
    with pytest.raises(StartError, match=f"The table messages at {tmp_path}.* cannot be read: "):
        consume(lake=Lake(path=str(tmp_path)))
    assert service.sent == []


@pytest.mark.parametrize("error", [OSError("the store is away"), CorruptRecordError("checksum"), KafkaTimeoutError()])
def test_a_failing_fetch_is_retried(service: Service, consume: Callable[..., QueueConsumer], error: Exception) -> None:
    failures = deque([error, error])

    def fetch(deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
        if failures:
            raise failures.popleft()
        return _all(deliveries)

    service.fetch = fetch
    consumer = consume()
    service.deliver(2)
    message = consumer.receive(PATIENCE_SECONDS)
    assert message is not None
    assert (message.id, service.settled("rejected")) == ("m2", [])


def test_fetches_and_records_that_fail_one_after_the_other_are_logged_once_at_a_time(
    service: Service,
    consume: Callable[..., QueueConsumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(queue_link, "monotonic_ms", lambda: 1_000)
    monkeypatch.setattr(queue_link, "POLL_MS", 1)
    failures = deque([OSError("the store is away")] * 5)

    def fetch(deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
        if failures:
            raise failures.popleft()
        return _all(deliveries)

    service.fetch = fetch
    service.rejections += [KafkaTimeoutError("no metadata")] * 5
    consumer = consume()
    service.deliver(2)
    assert consumer.receive(PATIENCE_SECONDS) is not None
    eventually(lambda: not service.rejections, "the last record that Kafka does not take")
    consumer.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Fetching messages failed and will be retried: the store is away",
        "A record of A will be sent again, as Kafka did not take it: KafkaTimeoutError: no metadata",
    ]


def test_signs_of_life_are_sent_while_a_fetch_waits(service: Service, consume: Callable[..., QueueConsumer]) -> None:
    service.session_ms = 3
    go_on = threading.Event()

    def fetch(deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
        go_on.wait(PATIENCE_SECONDS)
        return _all(deliveries)

    service.fetch = fetch
    consumer = consume()
    service.deliver(2)
    eventually(lambda: sum(isinstance(record, Alive) for record in service.sent) >= 2, "signs of life")
    go_on.set()
    assert consumer.receive(PATIENCE_SECONDS) is not None


def test_a_handler_that_closes_its_consumer_has_its_message_settled_before(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    consumer: QueueConsumer | None = None
    made = threading.Event()

    def handle(_message: object) -> None:
        made.wait(PATIENCE_SECONDS)
        assert consumer is not None
        consumer.close()

    consumer = consume(handler=handle, mode="auto")
    service.deliver(2, 3)
    made.set()
    assert consumer.wait_closed(PATIENCE_SECONDS)
    consumer.close()
    assert service.settled() == ["m2"]
    assert isinstance(service.sent[-1], Unbind), "nothing is settled behind it"


@pytest.mark.parametrize("callback", ["on_error", "on_refused"])
def test_a_callback_that_closes_the_consumer_waits_for_no_handler(
    service: Service, consume: Callable[..., QueueConsumer], callback: str
) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def handle(_message: object) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    def close(_news: object) -> None:
        consumer.close()
        closed.set()

    consumer = consume(handler=handle, mode="auto", **{callback: close})
    service.deliver(2)
    assert begun.wait(PATIENCE_SECONDS)
    news: dict[str, QueueAnswer] = {
        "on_error": Unbound("q", "A", service.session, "replaced"),
        "on_refused": NotSettled("q", "A", service.session, 3, "m0", "accepted", "not-held"),
    }
    service.answers.append(news[callback])
    assert closed.wait(PATIENCE_SECONDS)
    go_on.set()
    eventually(lambda: not any(loop._thread.is_alive() for loop in consumer._link._threads), "the end of the threads")


def test_a_consumer_whose_handler_has_ended_it_is_closed_by_its_callback(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    consumer = consume(handler=lambda _message: sys.exit(1), mode="auto", on_error=lambda _error: consumer.close())
    service.deliver(2)
    eventually(lambda: isinstance(service.sent[-1], Unbind), "the end of the session")


def test_signs_of_life_are_sent_until_the_last_handler_has_ended(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    service.session_ms = 3
    begun, go_on = threading.Event(), threading.Event()

    def handle(_message: object) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    consumer = consume(handler=handle, mode="auto")
    service.deliver(2)
    assert begun.wait(PATIENCE_SECONDS)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    eventually(consumer._ending.closing.is_set, "the close")
    before = len(service.sent)
    eventually(lambda: len(service.sent) > before + 1, "signs of life while closing")
    go_on.set()
    closing.join(PATIENCE_SECONDS)
    assert service.settled() == ["m2"]


def test_a_message_whose_lease_has_ended_in_the_buffer_is_not_handed_out(
    service: Service, consume: Callable[..., QueueConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0
    monkeypatch.setattr(queue_link, "monotonic_ms", lambda: now)
    service.lease_ms = 5_000
    consumer = consume(flow=FlowQos(window=1))
    service.deliver(2, 3, 4)
    eventually(lambda: any(isinstance(one, Alive) and one.received == 4 for one in service.sent), "the report")
    first = consumer.receive(PATIENCE_SECONDS)
    assert first is not None
    assert (first.id, first.lease_left) == ("m2", 5)
    now = 5_000
    service.deliver(5)
    last = consumer.receive(PATIENCE_SECONDS)
    assert last is not None
    assert (last.id, first.lease_left) == ("m5", 0)
    assert consumer.statistics.expired == 2


def test_the_first_message_of_a_session_is_handed_out_when_kafka_has_that_it_is_and_all_are_reported(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    """A message that always ends its process is the first of some session, and its deliveries have to count."""
    consumer = consume()
    service.deliver(2, 3)
    consumer.receive(PATIENCE_SECONDS)
    assert [one.handed_out for one in service.sent if isinstance(one, Alive)][-1] == 2
    consumer.receive(PATIENCE_SECONDS)
    consumer.close()
    last = service.sent[-1]
    assert isinstance(last, Unbind)
    assert last.handed_out == 3


def test_a_report_of_handing_out_that_kafka_rejects_at_once_costs_no_message(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    service.rejections += [KafkaTimeoutError("no metadata"), ValueError("no partitions")]
    consumer = consume()
    service.deliver(2)
    message = consumer.receive(PATIENCE_SECONDS)
    assert message is not None
    assert message.id == "m2"
    eventually(lambda: any(isinstance(one, Alive) and one.handed_out == 2 for one in service.sent), "the report")


def test_a_missing_answer_that_is_reported_with_the_first_message_holds_up_no_later_report(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    service.session_ms = 3
    consumer = consume()
    service.deliver(3)
    assert consumer.receive(PATIENCE_SECONDS) is not None
    eventually(lambda: any(isinstance(one, Alive) and one.missing == (2,) for one in service.sent), "the report")
    later = Alive("q", "A", service.session, 3, handed_out=3)
    eventually(lambda: later in service.sent, "a report of everything")


@pytest.mark.parametrize("outcome", ["accepted", "failed"])
def test_a_settlement_is_repeated_until_kafka_has_it(
    service: Service, consume: Callable[..., QueueConsumer], outcome: Any
) -> None:
    service.failures += [KafkaTimeoutError("120 s"), KafkaTimeoutError("120 s")]
    consumer = consume(outcomes=("failed",))
    service.deliver(2)
    message = consumer.receive(PATIENCE_SECONDS)
    assert message is not None
    message.settle(outcome)
    eventually(lambda: len(service.settled(outcome)) == 3, "the settlement that is stored")
    assert consumer.alive


def test_a_report_of_work_that_kafka_did_not_take_is_not_repeated_after_the_settlement(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    service.lease_ms = 30
    service.failures.append(KafkaTimeoutError("120 s"))
    consumer = consume(mode="client")
    service.deliver(2)
    message = consumer.receive(PATIENCE_SECONDS)
    assert message is not None

    def report() -> bool:
        message.working()
        return len(service.failures) == 0

    eventually(report, "a report of work that Kafka does not take")
    message.settle()
    consumer.close()
    settlements = [record.outcome for record in service.sent if isinstance(record, SettleMessages)]
    assert settlements == ["working", "accepted"]


@pytest.mark.parametrize("mode", ["client", "auto"])
def test_a_handler_reports_from_any_thread_that_it_goes_on(
    service: Service, consume: Callable[..., QueueConsumer], mode: Any
) -> None:
    service.lease_ms = 30
    service.failures.append(KafkaTimeoutError("120 s"))
    done = threading.Event()

    def work(message: QueueMessage) -> None:
        def report() -> bool:
            message.working()
            return len(service.settled("working")) >= 3

        threads = [threading.Thread(target=eventually, args=(report, "reports of work")) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()

    consumer = consume(handler=work, mode=mode)
    service.deliver(2)
    assert done.wait(PATIENCE_SECONDS)
    assert set(service.settled("working")) == {"m2"}
    assert consumer.alive


def test_a_settlement_that_kafka_will_never_take_ends_the_consumer_visibly(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    service.failures.append(TopicAuthorizationFailedError("app-acks"))
    errors: list[Exception] = []
    consumer = consume(on_error=errors.append)
    service.deliver(2, 3)
    message = consumer.receive(PATIENCE_SECONDS)
    assert message is not None
    message.settle()
    with pytest.raises(TopicAuthorizationFailedError):
        consumer.wait_closed(PATIENCE_SECONDS)
    assert len(errors) == 1
    with pytest.raises(TopicAuthorizationFailedError):
        consumer.receive(0)


def test_a_handler_of_refusals_that_raises_ends_nothing(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    def refused(_record: object) -> None:
        raise RuntimeError("a bug of the application")

    consumer = consume(on_refused=refused)
    service.answers.append(NotSettled("q", "A", service.session, 2, "m1", "accepted", "not-in-queue"))
    service.deliver(3)
    assert consumer.receive(PATIENCE_SECONDS) is not None
    assert consumer.alive


def test_each_thread_that_requests_accepts_the_message_it_received_before(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    consumer = consume(mode="auto")
    service.deliver(2, 3, 4)
    first = consumer.receive(PATIENCE_SECONDS)
    assert first is not None
    other = threading.Thread(target=lambda: [consumer.receive(PATIENCE_SECONDS) for _ in range(2)])
    other.start()
    other.join()
    # this thread is still working on the first one
    assert service.settled() == ["m3"]
    consumer.receive(0)
    assert service.settled() == ["m3", "m2"]


@pytest.mark.parametrize("mode", ["auto", "client"])
def test_a_consumer_whose_application_settles_nothing_says_so_once_until_it_goes_on(
    service: Service,
    consume: Callable[..., QueueConsumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    monkeypatch.setattr(lifetime, "LASTING_SECONDS", 0.05)
    monkeypatch.setattr(queue_link, "POLL_MS", 1)
    service.backlog = 2
    seen: list[QueueMessage] = []

    def handle(message: QueueMessage) -> None:
        seen.append(message)
        raise ValueError("the database is away")

    def texts() -> list[str]:
        return [record.getMessage() for record in caplog.records if "gets nothing" in record.getMessage()]

    consumer = consume(handler=handle, mode=mode)
    service.deliver(2)
    eventually(lambda: len(seen) == 1, "the first")
    threading.Event().wait(0.2)
    assert texts() == []
    service.deliver(3)
    eventually(lambda: len(texts()) == 1, "the line")
    assert texts()[0].startswith("The consumer A gets nothing: the application has 2 messages that it has not settled")
    threading.Event().wait(0.2)
    assert len(texts()) == 1
    assert consumer.alive


def test_no_more_is_fetched_than_fits_in_the_buffer(
    service: Service, consume: Callable[..., QueueConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_link, "MAX_READY_BYTES", 1_000)
    monkeypatch.setattr(queue_link, "FETCHED_AT_ONCE", 2)
    fetched: list[int] = []

    def fetch(deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
        fetched.extend(one.number for one in deliveries)
        return {one.message: _sample(bytes(600)) for one in deliveries}

    service.fetch = fetch
    consumer = consume()
    service.deliver(*range(2, 12))
    for number in range(2, 12):
        eventually(lambda: consumer._link._ready, "a message")
        assert fetched[-1] <= number + 3
        message = consumer.receive(PATIENCE_SECONDS)
        assert message is not None
        assert message.id == f"m{number}"


def test_a_lost_session_is_begun_again_and_its_messages_are_dropped(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    consumer = consume()
    service.deliver(2, 3)
    message = consumer.receive(PATIENCE_SECONDS)
    assert message is not None
    before = service.session
    service.answers.append(Unbound("q", "A", before, "lost"))
    eventually(lambda: service.session != before, "another bind")
    with pytest.raises(NotConnectedError):
        message.settle()
    service.answers.append(MessageDelivered("q", "A", service.session, 2, "m2", "t", 0, 2, 0, 2))
    again = consumer.receive(PATIENCE_SECONDS)
    assert again is not None
    assert (again.id, again.count, consumer.statistics.lost) == ("m2", 2, 1)


def test_a_stopped_consumer_hands_out_nothing_until_it_starts_and_says_so(
    service: Service, consume: Callable[..., QueueConsumer]
) -> None:
    consumer = consume()
    consumer.stop()
    eventually(lambda: any(isinstance(one, Alive) and one.stopped for one in service.sent), "the report")
    service.deliver(2)
    eventually(lambda: consumer._link._ready, "a message")
    assert consumer.receive(0.01) is None
    before = service.session
    service.answers.append(Unbound("q", "A", before, "lost"))
    eventually(lambda: service.session != before, "another bind")
    eventually(
        lambda: any(isinstance(one, Bind) and one.stopped and one.session != before for one in service.sent),
        "the bind of the new session",
    )
    consumer.start()
    service.deliver(2)
    assert consumer.receive(PATIENCE_SECONDS) is not None


def test_what_has_arrived_is_reported(service: Service, consume: Callable[..., QueueConsumer]) -> None:
    consumer = consume(flow=FlowQos(window=5))
    service.deliver(2, 3, 4)
    eventually(lambda: any(isinstance(one, Alive) and one.received == 4 for one in service.sent), "the transport ack")
    assert consumer.statistics.received == 3
    assert service.settled() == []
    with pytest.raises(InconsistentQosError):
        consume(flow=FlowQos(window=0))


def test_who_is_replaced_ends_and_learns_it(service: Service, consume: Callable[..., QueueConsumer]) -> None:
    errors: list[Exception] = []
    consumer = consume(handler=lambda _: None, mode="auto", on_error=errors.append)
    service.answers.append(Unbound("q", "A", service.session, "replaced"))
    with pytest.raises(NotConnectedError, match="Another consumer named A"):
        consumer.wait_closed(PATIENCE_SECONDS)
    eventually(lambda: errors, "the report")


@pytest.mark.parametrize("names", [{"queue": ""}, {"name": ""}, {"name": "n" * 256}])
def test_a_name_that_the_service_would_not_read_is_refused(names: dict[str, str]) -> None:
    with pytest.raises(BadParameterError, match="1 to 255"):
        QueueConsumer("localhost:9092", **{"queue": "q", "name": "A"} | names)  # type: ignore[arg-type]
