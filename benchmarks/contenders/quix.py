"""The join in quixstreams: two topics concatenated, RocksDB state with its changelog topic, deadlines by stream time.

State is kept by partition, not by record key: all keys are read as one, since the API cannot find due requests in the
states of other keys. Signals and acks have the same keys and the same number of partitions, so nothing has to be
repartitioned, and quixstreams merges the two by their time stamps. Deadlines are lists of correlation-ids in the state,
one for each 10 ms.

A program of its own; several of them share the partitions.
"""

from __future__ import annotations

import argparse
from typing import Any

from quixstreams import Application, State
from quixstreams.models.serializers import Deserializer

from benchmarks.contenders.joining import complete, receive, reply

SLOT = 1
"""Milliseconds of deadlines in one list."""


class OneKey(Deserializer):
    """Reads all record keys as the same."""

    def __call__(self, *_: Any, **__: Any) -> str:
        """Return the key."""
        return "partition"


def join(message: dict[str, Any], _key: str, timestamp: int, _headers: Any, state: State) -> list[tuple[str, Any]]:
    """Let the time of a message pass, then take it; return replies, each with the cause of its completion."""
    replies = list(expire(state, timestamp))
    key = message["headers"].get("correlation-id")
    if key is None:
        # it has only a time
        return replies
    before = state.get(key)
    due = before and before["due"]
    entry = receive(before, message, timestamp)
    if complete(entry):
        state.delete(key)
        return [*replies, ("acknowledgements", reply(entry))]
    state.set(key, entry)
    if entry["due"] != due:
        slot = f"due-{entry['due'] // SLOT}"
        state.set(slot, [*state.get(slot, []), key])
    return replies


def expire(state: State, now: int) -> Any:
    """Give the replies of due requests in the slots that have passed."""
    reached = state.get("reached")
    current = now // SLOT
    if reached is not None and current <= reached:
        return
    state.set("reached", current)
    for slot in range(current if reached is None else reached, current):
        keys = state.get(f"due-{slot}")
        if keys is None:
            continue
        for key in keys:
            entry = state.get(key)
            # answered since, or a request whose acknowledgement came first and had another deadline
            if entry is not None and entry["due"] // SLOT <= slot:
                state.delete(key)
                if entry["request"] is not None:
                    yield "timeout", reply(entry)
        state.delete(f"due-{slot}")


def main() -> None:
    """Run until it is killed."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "group", "state", "number"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    app = Application(
        broker_address=arguments.bootstrap,
        consumer_group=arguments.group,
        state_dir=arguments.state,
        auto_offset_reset="earliest",
        loglevel="WARNING",
        # while it merges topics it waits this long before it processes new records
        consumer_poll_timeout=0.01,
        # a program that is started again gets its partitions back at once, not when the session of the killed one ends
        consumer_extra_config={"group.instance.id": arguments.number},
        producer_extra_config={"linger.ms": 5},
    )
    signals, acks = (
        app.dataframe(app.topic(arguments.prefix + name, key_deserializer=OneKey())) for name in ("signals", "acks")
    )
    replies = signals.concat(acks).apply(join, stateful=True, metadata=True, expand=True)
    replies = replies.set_headers(lambda found, *_: [("completed-by", found[0])]).apply(lambda found: found[1])
    replies.to_topic(
        app.topic(arguments.prefix + "replies", key_serializer="str"),
        key=lambda value: value["headers"]["correlation-id"],
    )
    app.run()


if __name__ == "__main__":
    main()
