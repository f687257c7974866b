from __future__ import annotations

import pytest

from ackstream.jobs.twin.records import check_tags, read_tags
from ackstream.protocol.errors import DittoError


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("*", ("*",)),
        ('"rev:1"', ('"rev:1"',)),
        ('W/"rev:1", "hash:ab"', ('W/"rev:1"', '"hash:ab"')),
        (' "a" ,"b"', ('"a"', '"b"')),
    ],
)
def test_entity_tags_are_read(text: str, tags: tuple[str, ...]) -> None:
    assert read_tags("if-match", text) == tags


@pytest.mark.parametrize("text", ["", "rev:1", '"a" "b"', '"a*b"', '"a",,"b"', "**"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DittoError) as found:
        read_tags("if-match", text)
    assert (found.value.error, found.value.extra) == ("header.invalid", {"invalidHeaderKey": "if-match"})


TAG = '"rev:2"'


# if-match, if-none-match, the tag that is there, action, status of the error
@pytest.mark.parametrize(
    ("if_match", "if_none_match", "tag", "action", "status"),
    [
        (None, None, TAG, "modify", None),
        ((TAG,), None, TAG, "modify", None),
        (("*",), None, TAG, "modify", None),
        (('"rev:1"', TAG), None, TAG, "modify", None),
        (('"rev:1"',), None, TAG, "modify", 412),
        (('W/"rev:2"',), None, TAG, "modify", 412),
        (("*",), None, None, "modify", 412),
        (("*",), None, None, "delete", None),
        (("*",), None, None, "retrieve", None),
        (None, ("*",), None, "modify", None),
        (None, ("*",), TAG, "modify", 412),
        (None, (TAG,), TAG, "merge", 412),
        (None, ('"rev:1"',), TAG, "merge", None),
        (None, (TAG,), TAG, "retrieve", 304),
        (None, ('W/"rev:2"',), TAG, "retrieve", 304),
        (None, ('W/"rev:1"',), TAG, "retrieve", None),
        (None, ('W/"rev:2"',), TAG, "modify", 412),
    ],
)
def test_tags_are_compared(
    if_match: tuple[str, ...] | None, if_none_match: tuple[str, ...] | None, tag: str | None, action: str, status: int
) -> None:
    if status is None:
        check_tags(if_match, if_none_match, tag, action=action)
        return
    with pytest.raises(DittoError) as found:
        check_tags(if_match, if_none_match, tag, action=action)
    assert found.value.status == status
