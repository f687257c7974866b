from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.durations import LONG_MAX, MAX_MS, Duration, read_duration
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal
from tests.prose import each

UNITS = ["", "ms", "s", "m", "h", "d", "w", "mo", "y"]
AMOUNTS = st.integers(0, LONG_MAX)


@given(AMOUNTS, st.sampled_from(UNITS))
def test_a_printed_duration_parses_to_itself(amount: int, unit: str) -> None:
    duration = Duration(amount, unit)
    assert Duration.parse(str(duration)) == duration


@given(AMOUNTS, st.sampled_from(UNITS), st.sampled_from(["", "+", "00", "+000"]))
def test_sign_and_leading_zeros_are_not_printed(amount: int, unit: str, ornament: str) -> None:
    assert str(Duration.parse(f"{ornament}{amount}{unit}")) == f"{amount}{unit}"


@given(st.text() | st.from_regex(r"[+-]?[0-9]{0,30}(ms|s|m|h|d|w|mo|y)?", fullmatch=True))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    duration = outcome(Duration.parse, text)
    if isinstance(duration, DittoError):
        assert (duration.status, duration.error) == (400, "timeout.invalid")
    else:
        assert Duration.parse(str(duration)) == duration
        assert 0 <= duration.capped(65_000) <= 65_000


@given(st.integers(0, 10**15))
def test_milliseconds_come_back_as_they_were(milliseconds: int) -> None:
    assert Duration.of_milliseconds(milliseconds).milliseconds == milliseconds


def test_an_unreadable_duration_is_refused_with_the_forms() -> None:
    with pytest.raises(DittoError, match='such as 10s, 500ms or 1m: this one is "10 s"') as refused:
        Duration.parse("10 s")
    assert (refused.value.error, refused.value.description) == ("timeout.invalid", "Please choose a valid timeout.")


def test_a_very_long_number_is_refused_and_zeros_before_a_number_are_not() -> None:
    with pytest.raises(DittoError, match='this one is "9999'):
        Duration.parse("9" * 100_000)
    assert Duration.parse("0" * 100_000 + "7s") == Duration(7, "s")


@pytest.mark.parametrize(
    ("text", "maximum", "milliseconds"),
    [
        ("10s", 65_000, 10_000),
        ("2h", 65_000, 65_000),
        ("9223372036854775807", 65_000, 65_000),
        ("2147483647w", 65_000, 65_000),
        # the amount is cut to 32 bits and becomes negative
        ("4294967295w", 65_000, 65_000),
        ("0", 65_000, 0),
    ],
)
def test_a_cap_holds_whatever_the_length(text: str, maximum: int, milliseconds: int) -> None:
    assert Duration.parse(text).capped(maximum) == milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("250ms", 250),
        ("0s", 0),
        ("007m", 420_000),
        ("2h", 7_200_000),
        ("1mo", 2_629_746_000),
        ("PT10S", 10_000),
        ("PT0.25S", 250),
        ("PT1,5S", 1_500),
        ("PT0.0009S", 0),
        ("PT1H30M", 5_400_000),
        ("P1DT1M", 86_460_000),
        ("P2W", 1_209_600_000),
        ("P1Y2M", 36_816_444_000),
        ("P0D", 0),
    ],
)
def test_a_duration_has_a_unit_or_is_one_of_iso_8601(text: str, milliseconds: int) -> None:
    assert read_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "10", "-5s", "+5s", "5 s", "1.5s", "soon", "1h30m", "5s\n", "\u0665s", f"{'0' * 200}5s"),
        *("P", "PT", "P1DT", "PT5", "pt5s", "-PT5S", "P1H", "PT1D", "PT.5S", "PT5S "),
    ],
)
def test_other_texts_are_no_durations(text: str) -> None:
    assert read_duration(text) is None


@given(st.integers(0, 10**9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_is_as_long_as_that_of_ditto(amount: int, unit: str) -> None:
    found = read_duration(f"{amount}{unit}")
    assert found == Duration(amount, unit).milliseconds
    assert found is not None
    assert found <= MAX_MS


@pytest.mark.parametrize("text", ["PT10S", "P1D"])
def test_ditto_does_not_read_iso_8601(text: str) -> None:
    assert refusal(Duration.parse, text).error == "timeout.invalid"


@each("durations", "parse-extra-")
def test_prose_accepted_but_too_long_to_use(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    duration = Duration.parse(given_["parse"])
    assert (str(duration), duration.amount == 0) == (expect["string"], expect["isZero"])
    with pytest.raises(OverflowError):
        _ = duration.milliseconds


@each("durations", "of-", but=("of-null",))
def test_prose_of_milliseconds(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    if "error" in expect:
        assert refusal(Duration.of_milliseconds, given_["ofMillis"]).message == expect["message"]
    else:
        duration = Duration.of_milliseconds(given_["ofMillis"])
        assert str(duration) == expect["string"]
        assert duration.milliseconds == expect.get("millis", given_["ofMillis"])


@each("durations", "same-length-")
def test_prose_the_same_length_written_differently(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    a, b = Duration.parse(given_["a"]), Duration.parse(given_["b"])
    assert (a.milliseconds == b.milliseconds) is expect["sameMillis"]
    assert (str(a) == str(b)) is expect["sameString"]


@each("durations", "units-3.5")
def test_prose_units(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    for unit in expect["units"].split(", "):
        text = "1" if unit == "none" else f"1{unit}"
        assert str(Duration.parse(text)) == text
