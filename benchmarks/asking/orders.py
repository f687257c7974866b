"""Write orders in Protobuf by kafka-python: ``orders BOOTSTRAP TOPIC TOPIC``; its input has lines of ``plan.line``."""

from __future__ import annotations

import sys

from kafka import KafkaProducer


def main() -> None:
    """Run as a program."""
    bootstrap, *topics = sys.argv[1:]
    failed: list[BaseException] = []
    with KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5) as producer:
        for line in sys.stdin.buffer:
            headers, key, value = line.rstrip(b"\n").split(b"\t")
            number, article, cents = value.split(b" ")
            pairs = [header.split(b":", 1) for header in headers.split(b";")]
            producer.send(
                topics[int(key) % len(topics)], key=key, value=protobuf(int(number), article, int(cents)),
                headers=[(name.decode(), text) for name, text in pairs],
            ).add_errback(failed.append)  # fmt: skip
    if failed:
        raise failed[0]


def protobuf(number: int, article: bytes, cents: int) -> bytes:
    """Return ``message Order { uint64 number = 1; string article = 2; uint32 cents = 3; }`` on the wire."""
    return b"\x08" + _varint(number) + b"\x12" + _varint(len(article)) + article + b"\x18" + _varint(cents)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


if __name__ == "__main__":
    main()
