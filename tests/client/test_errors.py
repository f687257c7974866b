from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from ackstream.client import errors
from ackstream.errors import MissingExtraError, UnreachableError, cause
from ackstream.protocol.ditto.labels import Claim, LabelsTakenError
from ackstream.protocol.errors import AccessDeniedError, DittoError, thing_not_found


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("bad filter", errors.BadFilterError),
        ("NO_SUBSCRIPTION_MATCH", errors.NoSubscriptionMatchError),
        ("sow store failed", errors.RefusedError),
    ],
)
def test_reasons_are_typed_errors(reason: str, kind: type[errors.RefusedError]) -> None:
    error = errors.RefusedError.of(reason)
    assert type(error) is kind
    assert error.reason == reason


ERRORS = [
    errors.RefusedError.of("not entitled", "Message 3", "It lacks a right."),
    errors.RefusedError.of("sow store failed"),
    errors.RequestTimeout("There was no reply.", "c-1"),
    errors.ClosedError("The requester was closed.", "c-1"),
    errors.GapError(3, 7),
    errors.StoreError("The store is damaged."),
    UnreachableError("No Kafka answers."),
    DittoError(409, "a:b", "text", "description", "href", invalidHeaderKey="timeout"),
    thing_not_found("org.acme:lamp"),
    AccessDeniedError(thing_not_found("org.acme:lamp"), "READ"),
    LabelsTakenError(frozenset({"a:b"}), [Claim(frozenset({"a:b"}), "group")]),
    MissingExtraError("Install ackstream[lake]."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy, copy.copy])
def test_an_error_stays_what_it_is_in_another_process(error: Exception, copied: Any) -> None:
    again = copied(error)
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


_PY4J = """An error occurred while calling o1.executeCompaction.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Main
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a file was removed", "a file was removed"),
        ("a file was removed.\nmore", "a file was removed"),
        (_PY4J, "org.apache.spark.SparkException: Job aborted"),
        (
            f"{_PY4J}Caused by: a.B: c\n\tat d\nCaused by: java.io.IOException: disk full\n\tat e",
            "java.io.IOException: disk full",
        ),
        (f"{_PY4J}Caused by: a.B: c\n\tSuppressed: x.Y: z\n\t\tCaused by: not this\n", "a.B: c"),
        ('noise\nException in thread "main" java.lang.Error: no memory', "java.lang.Error: no memory"),
        ("", ""),
    ],
)
def test_an_error_of_java_is_told_by_its_deepest_cause(text: str, found: str) -> None:
    assert cause(text) == found
