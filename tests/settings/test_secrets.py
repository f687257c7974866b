"""No error about the settings, and no text of them, has a secret, wherever in them one may stand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import SecretStr

from ackstream.errors import SettingsError
from ackstream.settings import Settings, load
from ackstream.settings.base import Part

PLANTED = 47110815
"""A number, where all of them expect a text: a wrong value, which an error could show."""

Location = tuple[Any, ...]


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of, without unions and what annotates them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _parts(member)
    else:
        yield annotation


def _places(model: type[Part], location: Location = ()) -> Iterator[Location]:
    """Yield where secrets may stand: secrets by their type, and entries of free tables."""
    for name, field in model.model_fields.items():
        for kind in _parts(field.annotation):
            here = (*location, name)
            if get_origin(kind) is dict:
                yield (*here, "an.entry")
            elif get_origin(kind) is tuple:
                members = [part for part in _parts(get_args(kind)[0]) if isinstance(part, type)]
                for member in (part for part in members if issubclass(part, Part)):
                    yield from _places(member, (*here, _named(member)))
            elif isinstance(kind, type) and issubclass(kind, SecretStr):
                yield here
            elif isinstance(kind, type) and issubclass(kind, Part):
                yield from _places(kind, here)


def _named(model: type[Part]) -> tuple[Literal["item"], str]:
    """Return a step for an item of a list; connections are told apart by their type."""
    kind = model.model_fields.get("type")
    return "item", str(get_args(kind.annotation)[0]) if kind is not None and get_args(kind.annotation) else ""


def _value(location: Location, value: Any) -> Any:
    for step in reversed(location):
        kind = {"type": step[1]} if isinstance(step, tuple) and step[1] else {}
        value = [{**kind, **value}] if isinstance(step, tuple) else {step: value}
    return value


PLACES = sorted(set(_places(Settings)), key=str)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_toml(entry)}' for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def test_the_places_are_found() -> None:
    found = {".".join(step if isinstance(step, str) else step[1] for step in place) for place in PLACES}
    assert found >= {
        "kafka.security.password",
        "kafka.security.oauth.client_secret",
        "kafka.security.tls.key_password",
        "kafka.options.java.an.entry",
        "spark.conf.an.entry",
        "lake.storage_options.an.entry",
        "gateway.users.an.entry",
        "connections.mqtt.password",
    }


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("wrong", [PLANTED, [PLANTED], {"x": PLANTED}], ids=["number", "list", "table"])
def test_an_error_about_a_secret_does_not_show_it(tmp_path: Path, place: Location, wrong: Any) -> None:
    values: dict[str, Any] = _value(place, wrong)
    file = tmp_path / "wrong.toml"
    file.write_text("".join(f"{part} = {_toml(content)}\n" for part, content in values.items()), "utf-8")
    with pytest.raises(SettingsError) as caught:
        load(file, {})
    assert str(PLANTED) not in str(caught.value)
    assert place[0] in str(caught.value)


@pytest.mark.parametrize("part", Settings.model_fields)
@pytest.mark.parametrize("text", ['{"x": "47110815",}', '{"x": "47110815"}', '[["47110815"]]', ' [{"x": 47110815}]'])
def test_no_variable_of_the_environment_is_shown_whole(part: str, text: str) -> None:
    default = Settings.model_fields[part].default
    keys = [""] if isinstance(default, tuple) else [f"_{key.upper()}" for key in type(default).model_fields]
    for key in keys:
        shown = ""
        try:
            load(environment={f"ACKSTREAM_{part.upper()}{key}": text})
        except SettingsError as error:
            shown = str(error)
        assert "47110815" not in shown


def test_no_text_of_the_settings_has_a_secret() -> None:
    security = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password": "hunter2"}
    mapping = {"authorization": "Bearer hunter2"}
    target = {"address": "POST:/e?hunter2", "topics": ["_/_/things/twin/events"], "header_mapping": mapping}
    queue = target | {"address": "hunter2/"}
    source = {"addresses": ["in"], "reply_target": {"address": "hunter2", "header_mapping": mapping}}
    settings = Settings.model_validate(
        {
            "kafka": {"security": security, "options": {"python": {"x": "hunter2"}, "java": {"x": "hunter2"}}},
            "spark": {"conf": {"spark.x": "hunter2"}},
            "lake": {"storage_options": {"x": "hunter2"}},
            "gateway": {"users": {"ada": "hunter2"}},
            "connections": [
                {
                    "id": "a",
                    "type": "http-push",
                    "url": "https://x/hunter2",
                    "password": "hunter2",
                    "targets": [target],
                },
                {"id": "b", "type": "kafka", "security": security, "options": {"x": "hunter2"}, "targets": [queue]},
                {"id": "c", "type": "amqp-091", "sources": [source], "targets": [queue]},
            ],
        }
    )
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)
    assert settings.kafka.security.password is not None
    assert settings.kafka.security.password.reveal() == "hunter2"
