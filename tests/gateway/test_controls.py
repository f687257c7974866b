from __future__ import annotations

import pytest

from ackstream.gateway.controls import Control, read_control
from ackstream.protocol.errors import DittoError
from ackstream.protocol.subscriptions import subscription


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("EVENTS", "events"),
        ("MESSAGES", "messages"),
        ("LIVE-COMMANDS", "live-commands"),
        ("LIVE-EVENTS", "live-events"),
    ],
)
def test_each_stream_is_started_and_stopped_with_a_confirmation(name: str, stream: str):
    assert read_control(f"START-SEND-{name}") == Control(stream, subscription(stream), f"START-SEND-{name}:ACK")
    assert read_control(f"STOP-SEND-{name}") == Control(stream, None, f"STOP-SEND-{name}:ACK")


def test_a_subscription_has_namespaces_a_filter_and_extra_fields():
    text = (
        "START-SEND-EVENTS?namespaces=org.acme,org.other&extraFields=attributes%2Fx,features"
        "&filter=and(gt(attributes/x,1),like(attributes/y,%22a+b%3D*%22))"
    )
    assert read_control(text) == Control(
        "events",
        subscription(
            "events",
            namespaces=["org.acme", "org.other"],
            filter='and(gt(attributes/x,1),like(attributes/y,"a b=*"))',
            extra_fields="attributes/x,features",
        ),
        "START-SEND-EVENTS:ACK",
    )


@pytest.mark.parametrize("text", ["", "{}", "START-SEND", "START-SEND-POLICY-ANNOUNCEMENTS", "start-send-events"])
def test_anything_else_is_none(text: str):
    assert read_control(text) is None


def test_a_filter_that_cannot_be_read_is_refused():
    with pytest.raises(DittoError):
        read_control("START-SEND-EVENTS?filter=eq(")
