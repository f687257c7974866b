from __future__ import annotations

import json

import pytest

from ackstream.protocol import readers
from ackstream.protocol.json import RecordError
from ackstream.protocol.messages import CommandAck, encode_ack

APP_ACK = readers.AppAck(
    "R1", "w1", 3, 17, (readers.AckInterval(1, 3, reported=True), readers.AckInterval(5, 6, b"\xfa")), "Logger"
)


@pytest.mark.parametrize(
    "record",
    [
        APP_ACK,
        readers.ProtocolAck("R1", "w1", 1, 9),
        readers.ReaderStart("R1", 3, "Logger", durable=True, writers=("plant-*",)),
        readers.ReaderAlive("R1", 3),
        readers.ReaderStop("R1", 3),
        readers.ReaderStop("R1"),
        readers.WriterStateRequest("w1"),
        readers.WriterStateRequest("w1", {"Logger": 2}),
        readers.WriterStateRequest("w1", {}),
        readers.ReadersRequest("ops"),
    ],
)
def test_what_consumers_say_is_read_as_it_was_written(record: readers.ConsumerRecord) -> None:
    assert readers.read(readers.write(record)) == record


def test_the_shape_of_an_app_ack() -> None:
    assert json.loads(readers.write(APP_ACK)) == {
        "type": "app_ack",
        "reader": "R1",
        "writer": "w1",
        "epoch": 3,
        "count": 17,
        "intervals": [{"first": 1, "last": 3, "reported": True}, {"first": 5, "last": 6, "response": "+g=="}],
        "role": "Logger",
    }


def test_the_shapes_of_the_answers() -> None:
    conf, event = (
        readers.AppAckConf("R1", "w1", 3, 17),
        readers.ApplicationAcknowledged("w1", "R1", 5, 6, auto="filtered"),
    )
    assert json.loads(readers.write(conf)) == {
        "type": "app_ack_conf",
        "reader": "R1",
        "writer": "w1",
        "epoch": 3,
        "count": 17,
    }
    assert json.loads(readers.write(event)) == {
        "type": "application_ack",
        "writer": "w1",
        "reader": "R1",
        "first": 5,
        "last": 6,
        "auto": "filtered",
    }


@pytest.mark.parametrize(
    "answer",
    [
        readers.AppAckConf("R1", "w1", 3, 17),
        readers.ApplicationAcknowledged("w1", "R1", 5, 6, "Logger", b"\xfa"),
        readers.SamplesDone("w1", ((2, 3),), 0),
        readers.ReaderState("R1", 3, 1, 6, 1_000, (readers.KnownWriter("w1", 1, 9, ((1, 3),), ((5, 9),)),), 1, 2),
        readers.ReaderRemoved("R1", 1, 6, 3),
        readers.WriterState("w1", 9, 3, ((5, 5),), ("A", "Logger")),
    ],
)
def test_what_is_answered_is_read_as_it_was_written(answer: readers.Answer) -> None:
    assert readers.read_answer(readers.write(answer)) == answer


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b"[]", b'{"type": "horoscope"}', encode_ack(CommandAck(ack_type="persisted", client="w1", seq=4))],
)
def test_a_receiver_passes_over_what_is_not_from_settle(value: bytes) -> None:
    assert readers.read_answer(value) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no JSON",
        b"\xff",
        b"[]",
        b"{}",
        b'{"type": "horoscope"}',
        b'{"type": "app_ack", "reader": "R1", "writer": "w1", "epoch": 1, "count": 1}',
        b'{"type": "app_ack", "reader": "R1", "writer": "w1", "epoch": 1, "count": 1, "intervals": [[1, 2]]}',
        b'{"type": "reader_start", "reader": "", "epoch": 1}',
        b'{"type": "writer_asks", "writer": "%s"}' % (b"w" * 256),
        b'{"type": "reader_stop", "reader": "\\ud800\\u0041", "epoch": 1}',
        b'{"type": "reader_alive", "reader": "R1", "epoch": 9223372036854775808}',
        b'{"type": "settle", "consumer": "c", "message": "m", "outcome": "postponed"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_such_record_is_refused_with_what_is_wrong(value: bytes) -> None:
    with pytest.raises(RecordError, match="This is not a record of a consumer: "):
        readers.read(value)
