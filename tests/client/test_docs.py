from __future__ import annotations

from pathlib import Path
from typing import get_args

from ackstream.protocol.messages import SUPPORTED, AckType, Support

PAGE = Path(__file__).parent.parent.parent / "docs/compatibility/amps.md"


TYPES: tuple[AckType, ...] = get_args(AckType)


def _cell(support: Support | None) -> str:
    if support is None:
        return "-"
    return f"**{support}**" if support.startswith("with") else support


def matrix() -> str:
    """Return the table of supported acks as the page shows it."""
    rows = [["command", *TYPES], ["---"] * (1 + len(TYPES))]
    rows += [
        [command, *(_cell(supported.get(ack_type)) for ack_type in TYPES)] for command, supported in SUPPORTED.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_page_shows_the_matrix_that_the_code_uses() -> None:
    assert matrix() in PAGE.read_text("utf-8")
