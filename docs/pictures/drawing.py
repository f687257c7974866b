"""Draws what a run did as SVG: lanes with arrows between them, or bars over a time axis.

``python -m docs.pictures.drawing`` draws all pictures anew from ``runs.json``, where ``make pictures`` keeps its runs.
The layout depends on the events alone. A picture has a background of its own, for light and for dark pages.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import msgspec

HERE = Path(__file__).parent
RUNS = HERE / "runs.json"
WIDTH, MARGIN = 780, 12
CHARACTER, LINE = 7.7, 17
"""Pixels of a character, in the widest of the fonts, and of a line."""
TIMES, HEAD = 66, 74
"""Pixels of the column with the times, and above the first event."""
PAUSE_SECONDS, PAUSE = 1.0, 18
"""A longer pause gets that many pixels more in a sequence."""
STEPS, MOST_STEPS = (0.5, 1, 2, 5, 10, 20, 60, 600), 12
"""Seconds between the numbers of a time axis, and how many it may have."""

STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif; fill: currentColor;
  paint-order: stroke; stroke-width: 4px; stroke-linejoin: round }
.title { font-weight: 600; font-size: 14px } .lane { font-weight: 600; stroke: none }
line { stroke: currentColor; stroke-width: 1.6 } path, circle { fill: currentColor }
.life { stroke-width: 1; stroke-dasharray: 2 4 } .bar { fill: currentColor; fill-opacity: .3; stroke: currentColor }
svg { color: #1f2328 } text { stroke: #fff } .page { fill: #fff; stroke: #d0d7de }
.box { fill: #f0f3f6; stroke: #afb8c1 }
.plain { color: #0550ae } .good { color: #116329 } .bad { color: #a40e26 } .faint { color: #59636e }
@media (prefers-color-scheme: dark) {
  svg { color: #e6edf3 } text { stroke: #0d1117 } .page { fill: #0d1117; stroke: #30363d }
  .box { fill: #21262d; stroke: #57606a }
  .plain { color: #79c0ff } .good { color: #56d364 } .bad { color: #ff7b72 } .faint { color: #9198a1 }
}
"""

Tone = Literal["plain", "good", "bad", "faint"]


class Event(msgspec.Struct, omit_defaults=True):
    """Something that happened ``at`` a second: an arrow to ``target``, a note on a lane, or a bar ``until`` later."""

    at: float
    source: str
    text: str
    target: str = ""
    tone: Tone = "plain"
    until: float | None = None


class Picture(msgspec.Struct):
    """The events of a run, in order; ``about`` describes them in a sentence."""

    form: Literal["sequence", "timeline"]
    title: str
    about: str
    lanes: list[str]
    events: list[Event]


def draw(picture: Picture) -> str:
    """Return the SVG of a picture.

    :raises ValueError: if a label does not fit, or an event is on an unknown lane
    """
    for event in picture.events:
        unknown = {event.source, event.target or event.source} - set(picture.lanes)
        if unknown or (event.until or event.at) < event.at:
            raise ValueError(f"{picture.title}: {event} is on no lane, or ends before it begins")
    body, height = (sequence if picture.form == "sequence" else timeline)(picture.lanes, picture.events)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(picture.title)}</title>',
        f'<desc id="d">{escape(picture.about)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(MARGIN + 4, 24, picture.title, "title", "start"),
    ]
    return "\n".join([*head, *body, "</svg>"]) + "\n"


def width(text: str) -> float:
    """Return the most pixels that the lines of a label take."""
    return CHARACTER * max(map(len, text.split("\n")))


def _text(x: float, y: float, line: str, kind: str, anchor: str = "middle") -> str:
    """Draw a line of text, moved to where it is within the canvas."""
    size = width(line)
    before = {"start": 0.0, "middle": size / 2, "end": size}[anchor]
    if size > WIDTH - 2 * MARGIN:
        raise ValueError(f"{line!r} is wider than the picture")
    x = min(max(x, MARGIN + before), WIDTH - MARGIN - size + before)
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(line)}</text>'


def _tone(event: Event) -> str:
    return "" if event.tone == "plain" else event.tone


# -- lanes with arrows -------------------------------------------------------------------------------------------------


def sequence(lanes: list[str], events: list[Event]) -> tuple[list[str], float]:
    """Draw a lane as a vertical line and an event as an arrow, one below the other; return the elements, the height."""
    space = (WIDTH - TIMES) / len(lanes)
    places = {lane: TIMES + space * (number + 0.5) for number, lane in enumerate(lanes)}
    y, rows, before = float(HEAD), [], 0.0
    for event in events:
        y += 14 + LINE * len(event.text.split("\n")) + (PAUSE if event.at - before >= PAUSE_SECONDS else 0)
        rows += [_text(TIMES - 10, y + 4, f"{event.at:.2f} s", "faint", "end"), *_row(event, places, y)]
        before = event.at
    height = y + 26
    heads = []
    for lane, x in places.items():
        box = min(width(lane) + 22, space - 8)
        heads += [
            f'<line class="life faint" x1="{x:.1f}" y1="{HEAD - 8}" x2="{x:.1f}" y2="{height - 12:.1f}"/>',
            f'<rect class="box" x="{x - box / 2:.1f}" y="38" width="{box:.1f}" height="28" rx="6"/>',
            _text(x, 57, lane, "lane"),
        ]
    return heads + rows, height


def _row(event: Event, places: dict[str, float], y: float) -> list[str]:
    """Draw an arrow with its label above it, or a note in a box."""
    start, end = places[event.source], places[event.target or event.source]
    lines = event.text.split("\n")
    if start == end:
        # the box stays within the canvas as its label does
        box, top = width(event.text) + 16, y - 11 - LINE * (len(lines) - 1)
        start = min(max(start, MARGIN + box / 2), WIDTH - MARGIN - box / 2)
        size = f'width="{box:.1f}" height="{y + 11 - top:.1f}"'
        rect = f'<rect class="box" x="{start - box / 2:.1f}" y="{top:.1f}" {size} rx="5"/>'
        return [rect, *(_text(start, top + 15 + LINE * n, line, _tone(event)) for n, line in enumerate(lines))]
    side = 1 if end > start else -1
    tip = end - 3 * side
    head = f"M{tip:.1f} {y:.1f}l{-9 * side} -5v10z"
    shown = [
        _text((start + end) / 2, y - 7 - LINE * (len(lines) - 1 - number), line, _tone(event))
        for number, line in enumerate(lines)
    ]
    arrow = f'<line x1="{start + 3 * side:.1f}" y1="{y:.1f}" x2="{tip - 6 * side:.1f}" y2="{y:.1f}"/><path d="{head}"/>'
    return [*shown, f'<g class="{event.tone}">{arrow}</g>']


# -- bars over a time axis ---------------------------------------------------------------------------------------------


def timeline(lanes: list[str], events: list[Event]) -> tuple[list[str], float]:
    """Draw a lane as a row, and an event as a bar or a dot with its label above; return the elements and the height."""
    left, right = max(map(width, lanes)) + 2 * MARGIN + 8, WIDTH - 2 * MARGIN
    end = max((event.until or event.at) for event in events) or 1.0
    step = next(step for step in STEPS if end / step <= MOST_STEPS)
    rows: list[str] = []
    y = 40.0
    for lane in lanes:
        own = [event for event in events if event.source == lane]
        tiers = _tiers([(left + (right - left) * event.at / end, event.text) for event in own])
        y += 14 + LINE * (max(tiers, default=0) + 1)
        rows += [_text(MARGIN + 4, y + 12, lane, "lane", "start")]
        rows += [f'<line class="life faint" x1="{left:.1f}" y1="{y + 8}" x2="{right:.1f}" y2="{y + 8}"/>']
        for event, tier in zip(own, tiers, strict=True):
            x = left + (right - left) * event.at / end
            size = 0.0 if event.until is None else (right - left) * (event.until - event.at) / end
            dot = f'<circle cx="{x:.1f}" cy="{y + 8}" r="5"/>'
            bar = f'<rect class="bar" x="{x:.1f}" y="{y}" width="{size:.1f}" height="16" rx="3"/>'
            rows.append(f'<g class="{event.tone}">{bar if size else dot}</g>')
            rows.append(_text(x, y - 5 - LINE * tier, event.text, _tone(event), "start"))
        y += 20
    y += 16
    axis = [f'<line class="faint" x1="{left:.1f}" y1="{y}" x2="{right:.1f}" y2="{y}"/>']
    for number in range(int(end / step) + 1):
        x = left + (right - left) * number * step / end
        axis.append(f'<line class="faint" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 5}"/>')
        axis.append(_text(x, y + 20, f"{number * step:g} s", "faint"))
    return rows + axis, y + 34


def _tiers(labels: list[tuple[float, str]]) -> list[int]:
    """Return the line above the bars on which each label overlaps no earlier one."""
    taken: dict[int, list[tuple[float, float]]] = defaultdict(list)
    found = []
    for x, text in labels:
        begin = min(x, WIDTH - MARGIN - width(text))
        end = begin + width(text) + CHARACTER
        tier = next(tier for tier in range(len(labels)) if all(end <= a or begin >= b for a, b in taken[tier]))
        taken[tier].append((begin, end))
        found.append(tier)
    return found


def load() -> dict[str, Picture]:
    """Return the pictures of the last run by name."""
    return msgspec.json.decode(RUNS.read_bytes(), type=dict[str, Picture]) if RUNS.exists() else {}


def store(pictures: dict[str, Picture]) -> None:
    """Keep pictures of a run beside those that are there, and draw all."""
    kept = dict(sorted((load() | pictures).items()))
    RUNS.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    for name, picture in kept.items():
        (HERE / f"{name}.svg").write_text(draw(picture), "utf-8")


if __name__ == "__main__":
    store({})
