from __future__ import annotations

import json

import pytest

from ackstream.protocol.json import RecordError
from ackstream.protocol.messages import CommandAck, encode_ack
from ackstream.protocol.readers import (
    AckInterval,
    Answer,
    AppAck,
    AppAckConf,
    ApplicationAcknowledged,
    ConsumerRecord,
    KnownWriter,
    ProtocolAck,
    ReaderAlive,
    ReaderRemoved,
    ReadersRequest,
    ReaderStart,
    ReaderState,
    ReaderStop,
    SamplesDone,
    WriterState,
    WriterStateRequest,
    read,
    read_answer,
    write,
)

APP_ACK = AppAck("R1", "w1", 3, 17, (AckInterval(1, 3, reported=True), AckInterval(5, 6, b"\xfa")), "Logger")


@pytest.mark.parametrize(
    "record",
    [
        APP_ACK,
        ProtocolAck("R1", "w1", 1, 9),
        ReaderStart("R1", 3, "Logger", durable=True, writers=("plant-*",)),
        ReaderAlive("R1", 3),
        ReaderStop("R1", 3),
        ReaderStop("R1"),
        WriterStateRequest("w1"),
        WriterStateRequest("w1", {"Logger": 2}),
        WriterStateRequest("w1", {}),
        ReadersRequest("ops"),
    ],
)
def test_what_consumers_say_is_read_as_it_was_written(record: ConsumerRecord) -> None:
    assert read(write(record)) == record


def test_the_shape_of_an_app_ack() -> None:
    assert json.loads(write(APP_ACK)) == {
        "type": "app_ack",
        "reader": "R1",
        "writer": "w1",
        "epoch": 3,
        "count": 17,
        "intervals": [{"first": 1, "last": 3, "reported": True}, {"first": 5, "last": 6, "response": "+g=="}],
        "role": "Logger",
    }


def test_the_shapes_of_the_answers() -> None:
    conf, event = AppAckConf("R1", "w1", 3, 17), ApplicationAcknowledged("w1", "R1", 5, 6, auto="filtered")
    assert json.loads(write(conf)) == {"type": "app_ack_conf", "reader": "R1", "writer": "w1", "epoch": 3, "count": 17}
    assert json.loads(write(event)) == {
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
        AppAckConf("R1", "w1", 3, 17),
        ApplicationAcknowledged("w1", "R1", 5, 6, "Logger", b"\xfa"),
        SamplesDone("w1", ((2, 3),), 0),
        ReaderState("R1", 3, 1, 6, 1_000, (KnownWriter("w1", 1, 9, ((1, 3),), ((5, 9),)),), 1, 2),
        ReaderRemoved("R1", 1, 6, 3),
        WriterState("w1", 9, 3, ((5, 5),), ("A", "Logger")),
    ],
)
def test_what_is_answered_is_read_as_it_was_written(answer: Answer) -> None:
    assert read_answer(write(answer)) == answer


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b"[]", b'{"type": "horoscope"}', encode_ack(CommandAck(ack_type="persisted", client="w1", seq=4))],
)
def test_a_receiver_passes_over_what_is_not_from_settle(value: bytes) -> None:
    assert read_answer(value) is None


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
    with pytest.raises(RecordError, match="This is no record of a consumer: "):
        read(value)
