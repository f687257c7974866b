"""The same join in quixstreams: two topics concatenated, RocksDB state and its changelog topic, default settings.

State is kept by thing id (the record's key), within that by correlation-id: signals and acks have the same keys and the
same number of partitions, so nothing has to be repartitioned. It answers complete requests alone: there are no
timeouts, no ledger, no checks of the protocol and no memory of decided requests, so it does less than correlate.

A program of its own, ended by SIGTERM; several of them share the partitions.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from quixstreams import Application

if TYPE_CHECKING:
    from quixstreams import State


def join(message: dict[str, Any], state: State) -> dict[str, Any] | None:
    """Collect the acknowledgements of one request; return the reply when all are there."""
    headers = message["headers"]
    key = headers["correlation-id"]
    entry = state.get(key) or {"request": None, "acks": {}}
    criterion, _, label = message["topic"].split("/", 4)[4].partition("/")
    if criterion == "acks":
        entry["acks"].setdefault(label, {name: message.get(name) for name in ("status", "value", "headers")})
    else:
        entry["request"] = {"topic": message["topic"], "headers": headers}
    request, acks = entry["request"], entry["acks"]
    if request is None or any(label not in acks for label in request["headers"]["requested-acks"]):
        state.set(key, entry)
        return None
    state.delete(key)
    return reply(request, acks)


def reply(request: dict[str, Any], acks: dict[str, Any]) -> dict[str, Any]:
    """Aggregate the acknowledgements."""
    namespace, name, _ = request["topic"].split("/", 2)
    good = all(200 <= entry["status"] < 300 for entry in acks.values())
    return {
        "topic": f"{namespace}/{name}/things/twin/acks",
        "headers": {**request["headers"], "response-required": False, "content-type": "application/json"},
        "path": "/",
        "value": {label: acks[label] for label in request["headers"]["requested-acks"]},
        "status": 200 if good else 424,
    }


def main() -> None:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "target", "group", "state"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    app = Application(
        broker_address=arguments.bootstrap,
        consumer_group=arguments.group,
        state_dir=arguments.state,
        auto_offset_reset="earliest",
        loglevel="WARNING",
    )
    signals = app.dataframe(app.topic(arguments.prefix + "signals"))
    acks = app.dataframe(app.topic(arguments.prefix + "acks"))
    replies = signals.concat(acks).apply(join, stateful=True).filter(lambda value: value is not None)
    replies.to_topic(
        app.topic(arguments.target, key_serializer="str"), key=lambda value: value["headers"]["correlation-id"]
    )
    app.run()


if __name__ == "__main__":
    main()
