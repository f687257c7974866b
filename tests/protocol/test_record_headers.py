"""Names of record headers, and the trace of a request: from its record header into the message and out again."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol import record_headers
from ackstream.protocol.record_headers import checked_trace, trace_id, trace_of, with_trace

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        b"",
        b"x",
        TRACE.upper(),
        b"ff" + TRACE[2:],
        TRACE.replace(b"4bf92f3577b34da6a3ce929d0e0e4736", b"0" * 32),
        TRACE.replace(b"00f067aa0ba902b7", b"0" * 16),
        TRACE + b"\n",
        TRACE + b"-00",
        TRACE * 1000,
        b"\xff" * 55,
    ],
)
def test_a_malformed_trace_is_none(wrong: bytes | None) -> None:
    assert checked_trace(wrong) is None
    assert with_trace({"a": 1}, wrong) == {"a": 1}


def test_the_record_header_counts_where_the_message_has_none() -> None:
    assert with_trace({"a": 1}, TRACE) == {"a": 1, "traceparent": TRACE.decode()}
    for name in ("traceparent", "Traceparent"):
        assert with_trace({name: "own"}, TRACE) == {name: "own"}


@given(st.dictionaries(st.sampled_from(["a", 'b"', "traceparent2"]), st.text()), st.binary(min_size=1, max_size=24))
def test_what_was_put_in_comes_out_whatever_is_beside_it(headers: dict[str, str], seed: bytes) -> None:
    digits = (seed.hex() + "1" * 48)[:48]
    trace = f"00-{digits[:31]}1-{digits[32:47]}1-01".encode()
    assert trace_of(msgspec.json.encode(with_trace(dict(headers), trace))) == trace
    assert trace_of(msgspec.json.encode(headers)) is None


def test_a_text_that_quotes_a_trace_is_none() -> None:
    assert trace_of(msgspec.json.encode({"note": f'"traceparent":"{TRACE.decode()}"'})) is None


def test_a_trace_id_is_found_alone_or_in_the_whole_header() -> None:
    for text in (TRACE.decode(), f" {TRACE.decode().upper()}\n", TRACE[3:35].decode()):
        assert trace_id(text) == TRACE[3:35].decode()


@given(st.text())
def test_any_other_text_has_no_trace_id(text: str) -> None:
    assert trace_id(text) is None
    assert trace_id(f"{text}-") is None


# -- names -------------------------------------------------------------------------------------------------------------

PACKAGE = Path(record_headers.__file__).parent.parent
NAMES = {value for name, value in vars(record_headers).items() if name.isupper() and isinstance(value, str)}


def test_no_other_module_spells_the_name_of_a_record_header() -> None:
    # those without a hyphen are ordinary words, and these are headers in JSON too
    telling = {name for name in NAMES if "-" in name}
    telling -= {"correlation-id", "content-type", "reply-to", "requested-acks", "ditto-entity-id"}
    found = {
        f"{path.relative_to(PACKAGE)}: {node.value}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "record_headers.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in telling
    }
    assert found == set()
