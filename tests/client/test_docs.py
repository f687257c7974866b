from __future__ import annotations

from pathlib import Path

from ackstream.protocol.messages import ACK_TYPES, SUPPORTED, Support

PAGE = Path(__file__).parent.parent.parent / "docs" / "amps.md"


def _cell(support: Support) -> str:
    if support in (Support.NO, Support.YES):
        return "-" if support is Support.NO else "yes"
    return "yes, merged" if support is Support.CONFLATED else f"**{support.value}**"


def matrix() -> str:
    """Return the table of supported acks as the page shows it."""
    rows = [["command", *ACK_TYPES], ["---"] * (1 + len(ACK_TYPES))]
    rows += [
        [command, *(_cell(supported.get(ack_type, Support.NO)) for ack_type in ACK_TYPES)]
        for command, supported in SUPPORTED.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_page_shows_the_matrix_that_the_code_uses() -> None:
    assert matrix() in PAGE.read_text("utf-8")
