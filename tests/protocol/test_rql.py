from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql import evaluation, parser, patterns
from ackstream.protocol.rql.patterns import Effort
from tests.harness.effort import soon
from tests.prose import prose

VECTORS = Path(__file__).parents[1] / "vectors"
NOW = datetime(2026, 3, 4, 5, 6, 7, 89_000, tzinfo=timezone.utc)
INVALID = "rql.expression.invalid"


def matching_thing() -> dict[str, Any]:
    """The thing the prose cases call "the matching test thing"; one of the cases holds it."""
    cases = (VECTORS / "cases" / "rql-match.jsonl").read_text(encoding="utf-8").splitlines()
    found = {case["id"]: case["given"]["thing"] for case in map(json.loads, cases)}
    return found["eval-testFilterPropertyWithIntegerEq-matching-1"]


def thing(value: Any) -> dict[str, Any]:
    return {"thingId": "a:b", "attributes": {"x": value}}


def refusal(call: Any, *args: Any) -> DittoError:
    with pytest.raises(DittoError) as raised:
        call(*args)
    return raised.value


# cases


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=id_) for id_, case in prose("rql").items() if id_.startswith("field-")]
)
def test_prose_case_of_a_field(case: dict[str, Any]) -> None:
    filter_, expect = case["given"]["filter"], case["expect"]
    if "error" in expect:
        assert refusal(evaluation.matches, filter_, matching_thing()).to_dict() == expect["error"]
    else:
        assert evaluation.matches(filter_, matching_thing()) is expect["matches"]


def test_prose_case_error_unknown_placeholder() -> None:
    case = prose("rql")["error-unknown-placeholder"]
    error = refusal(evaluation.matches, case["given"]["filter"], matching_thing())
    assert error.to_dict().items() >= case["expect"]["error"].items()
    assert error.message == "Unknown property name: test:unknown"


@pytest.mark.parametrize("op", ["eq", "gt", "ge", "lt", "le", "like", "ilike", "in"])
def test_prose_case_value_comparing_json_object_never_evaluates_to_true(op: str) -> None:
    expected = prose("rql")["value-comparingJsonObjectNeverEvaluatesToTrue"]["expect"]["matches"]
    assert evaluation.matches(f'{op}(attributes/x,"*")', thing({"a": "*"})) is expected


def test_prose_case_value_comparing_json_array_never_evaluates_to_true() -> None:
    # an array (or object) cannot even be written as a literal
    assert refusal(parser.parse, "eq(attributes/x,[1])").error == INVALID


# grammar


@pytest.mark.parametrize(
    ("filter_", "message"),
    [
        ("", "Unexpected end of input at position 1, expected one of and, or, not, eq,"),
        ("eq(a 1)", "Unexpected ')' at position 7, expected ','."),
        ("eq(a,1", "Unexpected end of input at position 7, expected ')'."),
        ("in(a,1;2)", "Unexpected ';' at position 7, expected ',' or ')'."),
        ("and(eq(a,1);eq(b,2))", "Unexpected ';' at position 12, expected ',' or ')'."),
        ("eq(a,1)x", "Unexpected 'x' at position 8, expected the end of input."),
        ("eq(a, 1)", "Unexpected ' ' at position 6, expected a number, a quoted text,"),
        ('eq(a,"x)', "Unexpected end of input at position 9, expected '\"'."),
        ("eq(a,'x\\\"')", "Unexpected '\\\\' at position 8, expected another character or an escape"),
        ("eq(a\\x,1)", "Unexpected '\\\\' at position 5, expected another character or an escape"),
        ("eq(a,time:)", "Unexpected ')' at position 11, expected a name in one line after time:."),
        ("eq(a,9223372036854775808)", "The number at position 6 is out of the range of 64-bit integers."),
        ("eq(a,-9223372036854775809)", "The number at position 6 is out of the range of 64-bit integers."),
        (f"eq(a,{'9' * 9_000})", "The number at position 6 is out of the range of 64-bit integers."),
        (f"eq(a,{'9' * 9_000}.0)", "The number at position 6 is out of the range of 64-bit floating point."),
    ],
)
def test_a_refusal_says_where_and_what_was_expected(filter_: str, message: str) -> None:
    error = refusal(parser.parse, filter_)
    assert (error.status, error.error) == (400, INVALID)
    assert error.message.startswith(message)
    assert error.description is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("+5", 5),
        ("+0", 0),
        ("-0.0", -0.0),
        ("+0.5", 0.5),
        ("10.50", 10.5),
        ("1\t\r\n\f ", 1),
        ("true ", True),
        ("'a\"b'", 'a"b'),
        ('"it\'s"', "it's"),
        ('"\\b\\f\\n\\r\\t\\/\\\\\\""', '\b\f\n\r\t/\\"'),
        ('"\\uD83D\\uDE00"', "\N{GRINNING FACE}"),
        ('"two\nlines"', "two\nlines"),
        ("time:now-1h[d]", {"placeholder": "time:now-1h[d]"}),
        ("time:now ", {"placeholder": "time:now "}),
    ],
)
def test_a_literal_is_read(text: str, value: Any) -> None:
    tree = msgspec.to_builtins(parser.parse(f"eq(a,{text})"))
    assert repr(tree["value"]) == repr(value)


@pytest.mark.parametrize(
    "text", ["1.", ".5", "01", "-01.5", "-0", "--1", "1e5", "0x1", "1_000", "nan", "True", "", "\u0661", "now", "'x"]
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    assert refusal(parser.parse, f"eq(a,{text})").error == INVALID


@pytest.mark.parametrize(
    "filter_",
    [
        "EQ(a,1)",
        "not(eq(a,1),eq(b,1))",
        "and()",
        "in(a)",
        "exists(a,b)",
        "exists(a",
        "eq(a)",
        "eq(a,1,2)",
        "\u00a0eq(a,1)",
    ],
)
def test_what_is_no_query_is_refused(filter_: str) -> None:
    assert refusal(parser.parse, filter_).error == INVALID


def test_a_property_keeps_its_blanks_and_loses_its_escapes() -> None:
    assert parser.parse('exists( a\\u002c\\u0029\\"\\\\/ )') == parser.Existence("exists", ' a,)"\\/ ')


def test_not_has_one_argument() -> None:
    assert parser.parse("not(exists(a))") == parser.Combination("not", (parser.Existence("exists", "a"),))


def test_a_filter_of_too_many_conditions_is_refused() -> None:
    levels = parser.MAX_NODES - 1
    deepest = "not(" * levels + "exists(attributes/x)" + ")" * levels
    assert evaluation.matches(deepest, thing(1)) is (levels % 2 == 0)
    assert written(parser.parse(deepest)) == deepest
    widest = f"or({','.join(['exists(attributes/x)'] * levels)})"
    assert evaluation.matches(widest, thing(1))
    for larger in (f"and({deepest})", f"and({widest},exists(a))", "or(" * 3_000):
        error = refusal(parser.parse, larger)
        assert (error.error, error.message[:39]) == (INVALID, "The RQL expression has more than 200 co")


def test_a_filter_that_is_too_long_is_refused_before_it_is_read() -> None:
    longest = f'eq(attributes/x,"{"x" * (parser.MAX_CHARACTERS - 19)}")'
    assert len(longest) == parser.MAX_CHARACTERS
    parser.parse(longest)
    assert refusal(parser.parse, f" {longest}").message == "The RQL expression is longer than 10000 characters."
    many = ",".join(["eq(attributes/a,1)"] * 200_000)
    with soon(0.01):
        assert refusal(parser.parse, f"or({many})").error == INVALID


def test_the_leaves_come_in_the_order_they_are_written() -> None:
    tree = parser.parse("and(exists(a),or(not(eq(b,1)),in(c,1)),empty(d))")
    assert [leaf.property for leaf in parser.leaves(tree)] == ["a", "b", "c", "d"]


# comparison


@pytest.mark.parametrize(
    ("filter_", "value", "expected"),
    [
        # numbers are decimals
        ("eq(attributes/x,9007199254740993)", 9007199254740992.0, False),
        ("eq(attributes/x,0.1)", 0.1, True),
        ("gt(attributes/x,9223372036854775806)", 9223372036854775807, True),
        ("eq(attributes/x,-0.0)", 0, True),
        # a number against a text
        ("eq(attributes/x,1)", "1.0", True),
        ("eq(attributes/x,0)", "0", True),
        ("eq(attributes/x,'0')", 0, True),
        ("eq(attributes/x,100)", "1E2", True),
        ("eq(attributes/x,100)", " 100", False),
        ("eq(attributes/x,100)", "1_00", False),
        ("lt(attributes/x,1)", "NaN", False),
        ("eq(attributes/x,'5.')", 5, True),
        ("gt(attributes/x,5)", "abc", True),
        ("eq(attributes/x,1)", "1e99999999999999999999", False),
        ("gt(attributes/x,0)", "1e999999", True),
        # two texts are texts, by UTF-16 units
        ('lt(attributes/x,"5")', "10", True),
        ('lt(attributes/x,"\uffee")', "\N{GRINNING FACE}", True),
        # other mixtures are texts
        ("eq(attributes/x,'false')", False, True),
        ("gt(attributes/x,5)", True, True),
        ("gt(attributes/x,true)", "z", True),
        ("eq(attributes/x,true)", 1, False),
        # null
        ("ge(attributes/x,null)", None, False),
        ("le(attributes/x,0)", None, False),
        ("in(attributes/x,null)", None, False),
        ("in(attributes/x,null,1)", 1, True),
        ("eq(attributes/x,null)", "null", False),
        ("ne(attributes/x,null)", None, False),
        # arrays: any element, nested too; ne: none
        ("eq(attributes/x,3)", [1, [2, [3]]], True),
        ("ne(attributes/x,3)", [1, [2, [3]]], False),
        ("ne(attributes/x,4)", [1, [2, [3]]], True),
        ("eq(attributes/x,null)", [1, None], True),
        ("and(gt(attributes/x,2),lt(attributes/x,2))", [1, 3], True),
        ("eq(attributes/x,1)", [{"a": 1}], False),
    ],
)
def test_a_value_is_compared(filter_: str, value: Any, *, expected: bool) -> None:
    assert evaluation.matches(filter_, thing(value)) is expected


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("1", 1.0, True),
        ("10000000", 1e7, True),
        ("1.0E-4", 0.0001, True),
        ("1.2345E20", 1.2345e20, True),
        ("0.5", 0.5, True),
        ("tr?e", True, True),
        ("*", None, True),
        ("null", None, False),
        ("", None, False),
        ("b*", ["abc", ["bcd"]], True),
    ],
)
def test_like_sees_the_text_form(pattern: str, value: Any, *, expected: bool) -> None:
    assert evaluation.matches(f'like(attributes/x,"{pattern}")', thing(value)) is expected


@pytest.mark.parametrize(
    ("pattern", "value", "ignore_case", "expected"),
    [
        ("a*b", "a\nb", False, False),
        ("a?b", "a\u2028b", False, False),
        ("a\n*", "a\nb", False, True),
        ("a*", "a\n", False, False),
        ("**a**", "bab", False, True),
        ("?", "\N{GRINNING FACE}", False, True),
        ("[a](b)\\E.+", "[a](b)\\E.+", False, True),
        ("*ab*bc", "abc", False, False),
        ("*a?c*d", "abcabd", False, True),
        ("*aXb*", "--AxB--", True, True),
        ("\N{KELVIN SIGN}", "k", True, False),
        ("stra\u00dfe", "STRA\u00dfE", True, True),
    ],
)
def test_like(pattern: str, value: str, *, ignore_case: bool, expected: bool) -> None:
    assert patterns.like(pattern, value, ignore_case=ignore_case) is expected


LONG = "a" * 100_000


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 40 + "b",
        "*" + "?" * 5_000 + "b",
        "*" + "*".join(["aaaaab"] * 50),
        "*" + "a" * 9_000 + "b*",
        "a*" * 3_000 + "b",
    ],
)
def test_a_pattern_of_many_wildcards_ends_soon(pattern: str) -> None:
    with soon(0.1):
        assert not patterns.like(pattern, f"{LONG}c")


def test_a_pattern_with_too_many_wildcards_is_refused() -> None:
    accepted = "*a" * patterns.MAX_WILDCARDS
    evaluation.checked(parser.parse(f'like(attributes/x,"{accepted}")'))
    # a run of stars is one
    evaluation.checked(parser.parse(f'like(attributes/x,"{"*" * 1_000}")'))
    for pattern in (f"{accepted}?", "*" + "?" * 5_000 + "b"):
        error = refusal(evaluation.matches, f'ilike(attributes/x,"{pattern}")', thing(1))
        assert (error.error, error.message) == (INVALID, "A ilike pattern has more than 50 wildcards.")


def each(condition: str, number: int = 199) -> str:
    """Return a filter of as many conditions as it may have, all of which are evaluated."""
    return f"or({','.join(condition.format(index) for index in range(number))})"


@pytest.mark.parametrize(
    ("filter_", "value"),
    [
        (each("eq(attributes/x,{}.5)"), [number + 0.25 for number in range(15_000)]),
        (each("gt(attributes/x,1000000000{})"), [number + 0.25 for number in range(15_000)]),
        (each('eq(attributes/x,"{}x")'), list(range(15_000))),
        (each('like(attributes/x,"{}*x")'), [number * 1e-9 for number in range(1, 8_000)]),
        (each('like(attributes/x,"*aaaaaaaaaaaaaaab{}*")'), LONG),
        (each('ilike(attributes/x,"*b{}*")'), "é" * 50_000),
        (each("eq(attributes/x,{})"), "9" * 100_000),
        (each("exists(attributes/x/y{})"), [{"z": 1}] * 12_000),
        (f'like(attributes/x,"*{"a?" * 25}b*")', LONG),
        (f'like(attributes/x,"*{"a" * 5_000}?b*")', LONG),
        (f"in(attributes/x,{','.join(map(str, range(2_000)))})", [-1.5] * 20_000),
    ],
    ids=["floats", "order", "texts", "printed", "like", "ilike", "digits", "exists", "?", "long?", "in"],
)
def test_no_filter_is_evaluated_for_long(filter_: str, value: Any) -> None:
    with soon(0.1):
        error = refusal(lambda: evaluation.matches(filter_, thing(value), effort=Effort()))
    assert (error.status, error.error) == (400, "rql.expression.expensive")


def test_what_is_evaluated_takes_the_same_steps_each_time() -> None:
    spent = set()
    for _ in range(2):
        effort = Effort()
        assert not evaluation.matches(each("gt(attributes/x,9{})"), thing([1, 2.5, "3"]), effort=effort)
        spent.add(effort.spent)
    assert spent == {199 * 4}


def test_a_usual_filter_of_a_large_thing_is_evaluated() -> None:
    rich = thing(list(range(2_000)))
    assert evaluation.matches("and(eq(attributes/x,1999),lt(attributes/x,1))", rich, effort=Effort())
    assert evaluation.matches('like(attributes/x,"*b*")', thing(f"{LONG}b"), effort=Effort())


# fields


@pytest.mark.parametrize(
    "filter_",
    [
        'eq(thingId,"ns:name")',
        'eq(/thingId,"ns:name")',
        'eq(policyId,"ns:policy")',
        'eq(definition,"d:e:1")',
        'eq(_namespace,"ns")',
        "eq(_revision,7)",
        'lt(_created,"2026")',
        "lt(_modified,time:now)",
        "eq(_metadata/attributes/x/by,1)",
        "exists(_metadata)",
        "eq(attributes/a~b,1)",
        "eq(attributes/a~0b,1)",
        "eq(/attributes/list/name,2)",
        "exists(attributes/list/name)",
        "not(exists(attributes/list/other))",
        "exists(features/f)",
        "exists(features/f/properties)",
        "exists(features/f/desiredProperties/)",
        "not(exists(features/g))",
        'eq(features/f/definition,"m:n:2")',
        "exists(features/f/definition)",
        "eq(features/f/properties/p/q,3)",
        "eq(features/f/desiredProperties/p,4)",
    ],
)
def test_a_field_is_found(filter_: str) -> None:
    whole = {
        "thingId": "ns:name",
        "policyId": "ns:policy",
        "definition": "d:e:1",
        "_revision": 7,
        "_created": "2025-01-01T00:00:00Z",
        "_modified": "2025-01-01T00:00:00Z",
        "_metadata": {"attributes": {"x": {"by": 1}}},
        "attributes": {"a~b": 1, "list": [{"name": 1}, "text", {"name": 2}]},
        "features": {
            "f": {"definition": ["k:l:1", "m:n:2"], "properties": {"p": {"q": 3}}, "desiredProperties": {"p": 4}}
        },
    }
    assert evaluation.matches(filter_, whole, time=NOW)


@pytest.mark.parametrize(
    ("filter_", "name"),
    [
        ("eq(,1)", ""),
        ("eq(attributes,1)", "attributes"),
        ("eq(features/f,1)", "features/f"),
        ("eq(features/f/properties,1)", "features/f/properties"),
        ("exists(features/f/other)", "features/f/other"),
        ("exists(features/f/definition/0)", "features/f/definition/0"),
        ("eq( thingId,1)", " thingId"),
        ("eq(thingId ,1)", "thingId "),
        ("eq(//attributes/x,1)", "/attributes/x"),
        ("exists(topic:unknown)", "topic:unknown"),
        ("eq(time:now,1)", "time:now"),
        ("or(exists(thingId),eq(later,1))", "later"),
        ("like(unknown,5)", "unknown"),
    ],
)
def test_an_unknown_property_name_is_refused_wherever_it_stands(filter_: str, name: str) -> None:
    for query in (filter_, parser.parse(filter_)):
        assert refusal(evaluation.matches, query, thing(1)).message == f"Unknown property name: {name}"


def test_an_empty_segment_in_a_path_is_refused() -> None:
    error = refusal(evaluation.checked, parser.parse("eq(attributes/a//b,1)"))
    assert error.to_dict() == {
        "status": 400,
        "error": "json.pointer.invalid",
        "message": "The JSON pointer </attributes/a//b> is invalid!",
        "description": "Consecutive slashes in JSON pointers are not supported.",
    }


@pytest.mark.parametrize("pattern", ["5", "true", "null", "time:now"])
def test_a_pattern_that_is_no_text_is_refused(pattern: str) -> None:
    error = refusal(evaluation.matches, f"ilike(attributes/x,{pattern})", thing(1))
    assert error.message == "In the ilike predicate only string values are allowed."


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_a_value_without_content_exists_and_is_empty(value: Any) -> None:
    assert evaluation.matches("and(exists(attributes/x),empty(attributes/x))", thing(value))


@pytest.mark.parametrize("value", [0, 0.0, False, " ", [None], {"a": None}])
def test_a_value_with_content_is_not_empty(value: Any) -> None:
    assert evaluation.matches("and(exists(attributes/x),not(empty(attributes/x)))", thing(value))


def test_what_was_found_in_an_array_is_not_empty() -> None:
    assert evaluation.matches("not(empty(attributes/x/a))", thing([{"a": ""}]))
    assert evaluation.matches("empty(attributes/x/b)", thing([{"a": ""}]))


def test_an_absent_value_is_empty_and_equals_nothing() -> None:
    absent = "and(empty(attributes/y),not(exists(attributes/y)),not(eq(attributes/y,null)),ne(attributes/y,null))"
    assert evaluation.matches(absent, {})
    assert evaluation.matches(absent, thing(1))
    assert evaluation.matches(absent, {"attributes": None})


# placeholders


def test_a_placeholder_about_the_signal_is_a_field() -> None:
    facts = {"topic": {"action": "modified", "subject": ""}, "feature": {"id": ["f", "g"]}, "thing": {"id": "a:b"}}
    for filter_ in (
        'eq(topic:action,"modified")',
        "exists(topic:subject)",
        "empty(topic:subject)",
        "not(exists(topic:channel))",
        "empty(topic:channel)",
        "ne(topic:channel,'live')",
        # the first of several counts
        "and(eq(feature:id,'f'),ne(feature:id,'g'))",
        "like(thing:id,'a:*')",
    ):
        assert evaluation.matches(filter_, {}, **facts), filter_


@pytest.mark.parametrize(
    ("placeholder", "text"),
    [
        ("now", "2026-03-04T05:06:07.089Z"),
        ("now_epoch_millis", "1772600767089"),
        ("now-1h", "2026-03-04T04:06:07.089Z"),
        ("now+1d", "2026-03-05T05:06:07.089Z"),
        ("now-7", "2026-03-04T05:06:00.089Z"),
        ("now[ms]", "2026-03-04T05:06:07.089Z"),
        ("now[s]", "2026-03-04T05:06:07Z"),
        ("now[]", "2026-03-04T05:06:07Z"),
        ("now[m]", "2026-03-04T05:06:00Z"),
        ("now[h]", "2026-03-04T05:00:00Z"),
        ("now[d]", "2026-03-04T00:00:00Z"),
        ("now[w]", "2026-03-02T00:00:00Z"),
        ("now[mo]", "2026-03-01T00:00:00Z"),
        ("now-1y[y]", "2025-01-01T00:00:00Z"),
        ("now_epoch_millis-500ms", "1772600766589"),
    ],
)
def test_a_time_placeholder_is_a_text(placeholder: str, text: str) -> None:
    assert evaluation.matches(f"eq(attributes/x,time:{placeholder})", thing(text), time=NOW)


@pytest.mark.parametrize(
    "placeholder", ["later", "now ", "now-", "now--1h", "now-1x", "now[x]", "now-9999y", "nowadays"]
)
def test_a_time_placeholder_that_means_nothing_is_null(placeholder: str) -> None:
    assert evaluation.matches(f"eq(attributes/x,time:{placeholder})", thing(None), time=NOW)


def test_a_moment_without_a_time_zone_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"must have a time zone, 2026-03-04T05:06:07.089000 has none"):
        evaluation.matches("lt(_modified,time:now)", {}, time=NOW.replace(tzinfo=None))


def test_without_a_moment_a_time_placeholder_is_null() -> None:
    assert not evaluation.matches("lt(_modified,time:now)", {"_modified": "2020-01-01T00:00:00Z"})
    assert not evaluation.matches("in(_modified,time:now)", {"_modified": "2020-01-01T00:00:00Z"})


# laws

OPERATORS = ("eq", "ne", "gt", "ge", "lt", "le", "like", "ilike")
PLACEHOLDERS = st.sampled_from(["time:now", "time:now-1h[d]", "time: x\\n"]).map(parser.Placeholder)
VALUES: st.SearchStrategy[parser.Value] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | PLACEHOLDERS
)


def negated(tree: parser.Node) -> parser.Node:
    return parser.Combination("not", (tree,))


def written(tree: parser.Node) -> str:
    """A filter of which the tree is made; its texts are escaped as in JSON."""
    if isinstance(tree, parser.Combination):
        return f"{tree.op}({','.join(map(written, tree.args))})"
    parts = [json.dumps(tree.property)[1:-1].replace(",", "\\u002c").replace(")", "\\u0029")]
    match tree:
        case parser.Membership(_, values_):
            return f"in({','.join(parts + list(map(_literal, values_)))})"
        case parser.Comparison(_, _, value):
            parts.append(_literal(value))
    return f"{tree.op}({','.join(parts)})"


def _literal(value: parser.Value) -> str:
    if isinstance(value, parser.Placeholder):
        return value.placeholder
    # the grammar has no exponent and wants a fraction
    return f"{Decimal(value):f}" + ".0" * value.is_integer() if isinstance(value, float) else json.dumps(value)


def trees(
    properties: st.SearchStrategy[str], values: st.SearchStrategy[parser.Value]
) -> st.SearchStrategy[parser.Node]:
    pattern = st.text("ab*?\n")
    leaf = (
        st.builds(parser.Comparison, st.sampled_from(OPERATORS[:6]), properties, values)
        | st.builds(parser.Comparison, st.sampled_from(OPERATORS[6:]), properties, pattern)
        | st.builds(parser.Membership, properties, st.lists(values, min_size=1, max_size=3).map(tuple))
        | st.builds(parser.Existence, st.sampled_from(["exists", "empty"]), properties)
    )
    return st.recursive(
        leaf,
        lambda inner: (
            inner.map(negated)
            | st.builds(
                parser.Combination, st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3).map(tuple)
            )
        ),
        max_leaves=6,
    )


KNOWN = st.sampled_from(["thingId", "attributes/a", "attributes/a/b", "features/f/properties/a"])
SMALL = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "1", "1.0", "a", "ab", "true", 0.5, 1.0])
JSON = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
THINGS = st.fixed_dictionaries(
    {},
    optional={
        "thingId": st.just("a:b"),
        "attributes": st.dictionaries(st.sampled_from("ab"), JSON, max_size=2),
        "features": st.fixed_dictionaries({"f": st.fixed_dictionaries({"properties": JSON})}),
    },
)
law = settings(max_examples=200)


@law
@given(trees(st.text(), VALUES))
def test_a_printed_tree_is_parsed_to_the_same_tree(tree: parser.Node) -> None:
    # by repr, since 1, 1.0 and true are equal in Python
    assert repr(parser.parse(written(tree))) == repr(tree)


@law
@given(trees(KNOWN, SMALL), THINGS)
def test_a_double_negation_changes_nothing(tree: parser.Node, thing_: dict[str, Any]) -> None:
    assert evaluation.matches(negated(negated(tree)), thing_) is evaluation.matches(tree, thing_)


@law
@given(KNOWN, SMALL, THINGS)
def test_ne_is_the_negation_of_eq(name: str, value: parser.Value, thing_: dict[str, Any]) -> None:
    equal = parser.Comparison("eq", name, value)
    assert evaluation.matches(parser.Comparison("ne", name, value), thing_) is evaluation.matches(
        negated(equal), thing_
    )


@law
@given(KNOWN, SMALL.filter(lambda value: value is not None), THINGS)
def test_ge_is_gt_or_eq_and_in_is_eq(name: str, value: parser.Value, thing_: dict[str, Any]) -> None:
    def holds(op: Any) -> bool:
        return evaluation.matches(parser.Comparison(op, name, value), thing_)

    assert holds("ge") is (holds("gt") or holds("eq"))
    assert holds("le") is (holds("lt") or holds("eq"))
    assert evaluation.matches(parser.Membership(name, (value,)), thing_) is holds("eq")


@law
@given(trees(KNOWN, SMALL), trees(KNOWN, SMALL), THINGS)
def test_de_morgan(left: parser.Node, right: parser.Node, thing_: dict[str, Any]) -> None:
    neither = negated(parser.Combination("or", (left, right)))
    assert evaluation.matches(neither, thing_) is evaluation.matches(
        parser.Combination("and", (negated(left), negated(right))), thing_
    )


@law
@given(st.text("ab*?\n"), st.text("ab\n", max_size=12))
def test_like_is_what_its_definition_says(pattern: str, value: str) -> None:
    def fits(pattern: str, value: str) -> bool:
        if not pattern:
            return not value
        if pattern[0] == "*":
            return fits(pattern[1:], value) or (value[:1] not in ("", "\n") and fits(pattern, value[1:]))
        one = value[:1] not in ("", "\n") if pattern[0] == "?" else value[:1] == pattern[0]
        return one and fits(pattern[1:], value[1:])

    assert patterns.like(pattern[:12], value) is fits(pattern[:12], value)


TOKENS = ["and(", "or(", "not(", "eq(", "in(", "like(", "exists(", "attributes/x", "thingId", ",", ")", '"', "'", "\\"]
TOKENS += ["\\u00", "time:", "now", "null", "true", "-", "0", "1", ".", " ", "a", "//", "*"]


@law
@given(st.text() | st.lists(st.sampled_from(TOKENS)).map("".join))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        evaluation.matches(text, thing([1, None, {"a": "b"}]), time=NOW)
    except DittoError as error:
        assert error.status == 400  # noqa: PT017 - whether it is refused is left open
