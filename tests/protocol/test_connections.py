from __future__ import annotations

from typing import Any

from ackstream.protocol.connections import ConnectionLabels, connection_labels, resolve_label
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal
from tests.prose import each


@each("labels", "connection-", but=("connection-filtered",))
def test_prose_labels_of_a_connection(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    found = outcome(connection_labels, given_["connectionId"], given_["sourceDeclaredAcks"], given_["targetIssuedAcks"])
    if not expect["accepted"]:
        assert isinstance(found, DittoError)
        assert (found.status, found.error) == (expect["error"]["status"], expect["error"]["error"])
        assert expect["error"]["hint"] in (found.message, found.description)
    else:
        assert isinstance(found, ConnectionLabels)
        if "resolved" in expect:
            assert [*found.declared, *found.issued] == expect["resolved"]


def test_a_connection_declares_each_label_once_and_never_a_built_in_one() -> None:
    labels = connection_labels("c", ["c:one", "{{ connection:id }}:one"], ["live-response", "c:two", "c:one"])
    assert labels.to_declare == ("c:one", "c:two")


def test_two_targets_may_both_respond() -> None:
    assert connection_labels("c", [], ["live-response", "live-response"]).to_declare == ()


def test_a_label_may_have_no_other_placeholder() -> None:
    assert refusal(resolve_label, "c", "{{thing:id}}:one").error == "acknowledgement:label.invalid"
    assert refusal(resolve_label, "c", "{{colour:of}}:one").error == "acknowledgement:label.invalid"
