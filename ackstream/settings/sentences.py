"""What is wrong with a setting, as sentences that name the key, the value and the fix, and never a secret."""

from __future__ import annotations

import re
from typing import Any

from ackstream.settings.base import UNKNOWN_KEY, Part
from ackstream.settings.model import Settings

ENV_PREFIX = "ACKSTREAM_"

_NAME = "may have letters, digits, dots, underscores and hyphens only"
_FORMS = {
    r"^[A-Za-z0-9._-]*$": _NAME,
    r"^[A-Za-z0-9._-]+$": _NAME,
    r"^\d+[kmgKMG]$": "must be a whole number with k, m or g, such as 512m",
    "^/": "must begin with a slash",
    r"^[^*\s]+$": "must have neither spaces nor asterisks",
}
"""What patterns mean."""

_WHOLE, _NUMBER, _LIST, _TABLE = "must be a whole number", "must be a number", "must be a list", "must be a table"
_PROBLEMS = {
    "missing": "is missing",
    "union_tag_not_found": "is missing",
    "union_tag_invalid": "must be one of {expected_tags}",
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "too_short": "must have {min_length} entries or more",
    "too_long": "must have {max_length} entries or fewer",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "string_pattern_mismatch": "must have the form {pattern}",
    "string_type": "must be a text",
    "path_type": "must be a text",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _WHOLE),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), _NUMBER),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), _LIST),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _TABLE),
}
"""The ends of sentences, by the types of pydantic's errors."""


def problem(entry: Any) -> str:
    """Return what an error of pydantic is about, without key and value, as the end of a sentence."""
    kind, context = entry["type"], entry.get("ctx", {})
    if kind == UNKNOWN_KEY:
        return f"is not known; {context['hint']}"
    if kind in ("too_short", "string_too_short") and context["min_length"] == 1:
        return "must not be empty"
    if kind == "string_pattern_mismatch" and context["pattern"] in _FORMS:
        return _FORMS[context["pattern"]]
    if kind in _PROBLEMS:
        return _PROBLEMS[kind].format(**context)
    # of a validator of one's own
    return str(entry["msg"]).removeprefix("Value error, ").rstrip(".")


def key(entry: Any) -> str:
    """Return the key that an error is about, such as ``connections.0.type``."""
    location = _location(entry)
    if entry["type"] == UNKNOWN_KEY:
        location.append(entry["ctx"]["key"])
    elif entry["type"].startswith("union_tag"):
        location.append(entry["ctx"]["discriminator"].strip("'"))
    return ".".join(map(str, location))


def sentence(entry: Any) -> str:
    """Return the sentence about an error of the settings."""
    text = problem(entry)
    if entry["type"] == UNKNOWN_KEY:
        return f"The setting {key(entry)} {text}."
    location = _location(entry)
    place = f"in the settings file or in {_variable(location)}."
    if text == _PROBLEMS["missing"]:
        return f"The setting {key(entry)} {text}: write it {place}"
    if any(step in _HEADERS for step in location) and entry["type"] == "value_error":
        # the reason has a part of the text
        text = "a placeholder or a function in it is not known, or has no end"
    value = f" is {entry['ctx']['tag'] if entry['type'] == 'union_tag_invalid' else entry['input']!r}"
    if entry["type"] != "union_tag_invalid" and _holds_secrets(location, entry):
        value, text = "", text.replace(str(entry["input"]) or "…", "…")
    return f"The setting {key(entry)}{value}: {text}. Correct it {place}"


def _location(entry: Any) -> list[Any]:
    """Return the keys that lead to what is wrong."""
    location = list(entry["loc"])
    if location[:1] == ["connections"] and len(location) > _TYPE:
        del location[_TYPE]
    return location


def _variable(location: list[Any]) -> str:
    """Return the environment name of the setting in which something is wrong."""
    found: Any = Settings()
    names = []
    for step in location:
        if not isinstance(found, Part) or step not in type(found).model_fields:
            break
        names.append(step)
        found = getattr(found, step)
    return ENV_PREFIX + "_".join(names).upper()


def _holds_secrets(location: list[Any], entry: Any) -> bool:
    """Return whether a wrong value may be, or contain, a password, so that no log may have it."""
    value = entry["input"]
    tables = isinstance(value, (dict, list, tuple)) or entry["type"] in _NO_TABLE
    # of the environment, where a table may have got into the variable of a text
    tables |= isinstance(value, str) and value.lstrip().startswith(("{", "["))
    return tables or any(_SECRET.search(str(step)) for step in location)


_HEADERS = ("header_mapping", "headers")
_SECRET = re.compile(r"(?i)pass|secret|token|credential|key|^url$|options$|^users$|^conf$|^headers$|^header_mapping$")
"""Keys and tables whose values may be secrets."""
_NO_TABLE = ("dict_type", "list_type", "tuple_type", "model_type", "model_attributes_type")
"""Types of errors about a value in place of a table or list."""

_TYPE = 2
"""Position of the connection's type in an error's location; it follows the number and is not a key."""
