"""The pictures of the guides: each guide has one, and each is what the renderer draws of the run that is kept."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.pictures import drawing
from docs.pictures.drawing import Event, Picture

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs/guides").glob("*.md"))
PICTURES = drawing.load()
IMAGE = re.compile(r"!\[(?P<alternative>[^\]]+)\]\((?P<path>[^)\s]+\.(?:svg|png))\)")
LARGEST_BYTES = 25_000
LANES = ["shop", "ackstream", "bank"]

labels = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), min_size=1, max_size=60)
times = st.integers(0, 20_000).map(lambda milliseconds: milliseconds / 1000)


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    """Make a picture of either form with arrows, notes, bars and dots."""
    form = draw(st.sampled_from(["sequence", "timeline"]))
    events = []
    for _ in range(draw(st.integers(1, 8))):
        at, target = draw(times), draw(st.sampled_from(["", *LANES]))
        until = draw(st.none() | times.map(lambda length, at=at: at + length)) if form == "timeline" else None
        events.append(Event(at, draw(st.sampled_from(LANES)), draw(labels), target, "good", until))
    return Picture(form, draw(labels), draw(labels), LANES, events)


def _texts(svg: str) -> list[tuple[float, float, float, str]]:
    """Return left end, right end, height and line of each text, by the widest font."""
    found = []
    for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        size = drawing.width(text.text or "")
        left = float(text.attrib["x"]) - {"start": 0.0, "middle": size / 2, "end": size}[text.attrib["text-anchor"]]
        found.append((left, left + size, float(text.attrib["y"]), text.text or ""))
    return found


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_has_a_picture_with_a_text_for_those_who_do_not_see_it(page: Path) -> None:
    images = list(IMAGE.finditer(page.read_text("utf-8")))
    assert images
    for image in images:
        path = (page.parent / image["path"]).resolve()
        assert path.is_file()
        assert path.stat().st_size < LARGEST_BYTES or path.suffix == ".png"
        assert len(image["alternative"].split()) >= 6


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_renderer_draws_of_its_run(name: str) -> None:
    svg = drawing.draw(PICTURES[name])
    assert (drawing.HERE / f"{name}.svg").read_text("utf-8") == svg
    assert any(f"pictures/{name}.svg" in page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))


def test_every_picture_has_a_run() -> None:
    # those of the tables' questions are plots: notebooks/ten_questions.py
    plots = set(re.findall(r"pictures/(\w+)\.svg", (ROOT / "docs/guides/ten-questions.md").read_text("utf-8")))
    assert {path.stem for path in drawing.HERE.glob("*.svg")} - plots == PICTURES.keys()


@given(pictures())
def test_all_labels_are_inside_the_canvas_as_they_were_given(picture: Picture) -> None:
    svg = drawing.draw(picture)
    height = float(ET.fromstring(svg).attrib["viewBox"].split()[3])
    texts = _texts(svg)
    assert all(left >= 0 and right <= drawing.WIDTH and 0 < y < height for left, right, y, _ in texts)
    assert {event.text for event in picture.events} | {picture.title, *LANES} <= {text for *_, text in texts}


@given(pictures())
def test_the_labels_of_events_do_not_overlap(picture: Picture) -> None:
    own = {event.text for event in picture.events}
    shown = [text for text in _texts(drawing.draw(picture)) if text[3] in own - {picture.title, *LANES}]
    for (left, right, y, _), (other_left, other_right, other_y, _) in combinations(shown, 2):
        assert abs(y - other_y) >= drawing.LINE or right <= other_left or other_right <= left


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Event(0, "shop", "x" * 100, "bank"), "wider than the picture"),
        (Event(0, "nobody", "x", "bank"), "on no lane"),
        (Event(1, "shop", "x", until=0.5), "ends before it begins"),
    ],
)
def test_an_event_that_cannot_be_drawn_is_refused(event: Event, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        drawing.draw(Picture("sequence", "title", "about", LANES, [event]))


def test_markup_in_a_label_stays_text() -> None:
    text = "<script>&\"'"
    svg = drawing.draw(Picture("sequence", text, text, LANES, [Event(0, "shop", text, "bank")]))
    assert "<script" not in svg
    assert [line for *_, line in _texts(svg) if line not in LANES] == [text, "0.00 s", text]
