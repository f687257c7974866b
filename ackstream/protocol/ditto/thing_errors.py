"""Errors of things, with Ditto's codes and texts.

Source of the texts: Eclipse Ditto, the exceptions of ``things/model``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.protocol.ditto.errors import thing_not_found
from ackstream.protocol.errors import BAD_REQUEST, CONFLICT, NOT_FOUND, DittoError, shown

if TYPE_CHECKING:
    from ackstream.protocol.ditto.things import Resource

PRECONDITION_FAILED = 412
NOT_MODIFIED = 304
TOO_LARGE = 413

_OF_THING = "Check if the ID of the Thing was correct and you have sufficient permissions."
_OF_REQUESTED = "Check if the ID of your requested Thing was correct and you have sufficient permissions."
_OF_FEATURE = "Check if the ID of the Thing and the Feature ID was correct and you have sufficient permissions."
_KEY = "Check if the ID of the thing and the key of your requested {} was correct and you have sufficient permissions."
_FEATURE_KEY = (
    "Check if the ID of the Thing, the Feature ID and the key of your requested {} was correct and you have sufficient"
    " permissions."
)
_HIDDEN = "or the requester had insufficient permissions to access it."

# kind of resource: code, message, description
_NOT_FOUND = {
    "policyId": (
        "policyId",
        "The Policy ID of the Thing with ID <{thing}> could not be found "
        + _HIDDEN.replace("the requester", "requester"),
        _OF_REQUESTED,
    ),
    "definition": (
        "definition",
        "The Definition of the Thing with ID <{thing}> could not be found " + _HIDDEN,
        _KEY.format("definition"),
    ),
    "attributes": (
        "attributes",
        "The Attributes of the Thing with ID '{thing}' could not be found " + _HIDDEN,
        _OF_THING,
    ),
    "attribute": (
        "attribute",
        "The attribute with key '{pointer}' on the thing with ID '{thing}' could not be found " + _HIDDEN,
        _KEY.format("attribute"),
    ),
    "features": ("features", "The Features on the Thing with ID '{thing}' do not exist " + _HIDDEN, _OF_THING),
    "feature": (
        "feature",
        "The Feature with ID '{feature}' on the Thing with ID '{thing}' could not be found " + _HIDDEN,
        _OF_THING.replace("Thing was", "Thing and the ID of your requested Feature was"),
    ),
    "featureDefinition": (
        "feature.definition",
        "The Definition of the Feature with ID '{feature}' on the Thing with ID '{thing}' does not exist " + _HIDDEN,
        _OF_FEATURE,
    ),
    "featureProperties": (
        "feature.properties",
        "The Properties of the Feature with ID '{feature}' on the Thing with ID '{thing}' do not exist " + _HIDDEN,
        _OF_FEATURE,
    ),
    "featureProperty": (
        "feature.property",
        "The Property with JSON Pointer '{pointer}' of the Feature with ID '{feature}' on the Thing with ID '{thing}'"
        " does not exist " + _HIDDEN,
        _FEATURE_KEY.format("property"),
    ),
    "featureDesiredProperties": (
        "feature.desiredProperties",
        "The desired properties of the Feature with ID '{feature}' on the Thing with ID '{thing}' do not exist "
        + _HIDDEN,
        _OF_FEATURE,
    ),
    "featureDesiredProperty": (
        "feature.desiredProperty",
        "The desired property with JSON Pointer '{pointer}' of the Feature with ID '{feature}' on the Thing with ID"
        " '{thing}' does not exist " + _HIDDEN,
        _FEATURE_KEY.format("desired property"),
    ),
}


def not_found(thing_id: str, resource: Resource) -> DittoError:
    """Report that a thing lacks a part."""
    if resource.kind == "thing":
        return thing_not_found(thing_id)
    code, message, description = _NOT_FOUND[resource.kind]
    text = message.format(thing=shown(thing_id), feature=shown(resource.feature), pointer=shown(resource.pointer))
    return DittoError(NOT_FOUND, f"things:{code}.notfound", text, description)


def conflict(thing_id: str) -> DittoError:
    """Refuse to create an existing thing."""
    return DittoError(
        CONFLICT,
        "things:thing.conflict",
        f"The Thing with ID '{shown(thing_id)}' already exists",
        "Choose another Thing ID",
    )


def not_modified(expected: str, actual: str) -> DittoError:
    """Answer a query whose if-none-match names the current entity tag."""
    return DittoError(
        NOT_MODIFIED,
        "things:precondition.notmodified",
        "The comparison of precondition header 'if-none-match' for the requested Thing resource evaluated to false."
        f" Expected: '{shown(expected)}' not to match actual: '{actual}'.",
        "The comparison of the provided precondition header 'if-none-match' with the current ETag value of the"
        " requested Thing resource evaluated to false. Check the value of your conditional header value.",
    )


def condition_failed() -> DittoError:
    """Report that the thing does not meet the command's condition."""
    return DittoError(
        PRECONDITION_FAILED,
        "things:condition.failed",
        "The specified condition does not match the state of the requested Thing.",
        "The provided condition did not match the actual Thing state. Please check your provided condition.",
    )


def merge_invalid(description: str | None = None) -> DittoError:
    """Refuse a patch that cannot be applied."""
    return DittoError(
        BAD_REQUEST,
        "things:merge.invalid",
        "The provided JSON Merge Patch is invalid, it must conform to RFC7396.",
        shown(description or "The provided JSON Merge Patch cannot be applied at the given path."),
    )


def id_not_settable() -> DittoError:
    """Refuse a thing whose id differs from that of the topic."""
    return DittoError(
        BAD_REQUEST,
        "things:id.notsettable",
        "The Thing ID in the thing JSON is not equal to the Thing ID in the topic path.",
        "Either delete the Thing ID from the thing JSON or use the same Thing ID as in the topic path.",
    )


def id_not_deletable() -> DittoError:
    """Refuse a patch that removes the id."""
    return DittoError(
        BAD_REQUEST,
        "things:id.notdeletable",
        "The Thing ID of a Thing cannot be deleted.",
        "Remove the Thing ID entry from the request body and retry the request.",
    )


def policy_id_not_deletable() -> DittoError:
    """Refuse a patch that removes the policy's id."""
    return DittoError(
        BAD_REQUEST,
        "things:policyId.notdeletable",
        "The Policy ID of a Thing cannot be deleted.",
        "Remove Policy ID entry from the request body and retry the request.",
    )


def id_invalid(thing_id: str) -> DittoError:
    """Refuse an invalid id of an entity."""
    return DittoError(
        BAD_REQUEST,
        "things:id.invalid",
        f"Thing ID '{shown(thing_id)}' is not valid!",
        "It must conform to the namespaced entity ID notation (see Ditto documentation)",
        "https://www.eclipse.dev/ditto/basic-namespaces-and-names.html#namespaced-id",
    )


def definition_invalid(identifier: str) -> DittoError:
    """Refuse an invalid definition identifier."""
    return DittoError(
        BAD_REQUEST,
        "things:definition.identifier.invalid",
        f"Definition identifier <{shown(identifier)}> is invalid!",
        "An identifier string is expected to have the structure 'namespace:name:version' where each segment must"
        " contain at least one char of [_a-zA-Z0-9\\-.] OR it must be a valid HTTP(s) URL.",
    )


def thing_too_large(size: int, maximum: int) -> DittoError:
    """Refuse a change that makes a thing too large (bytes)."""
    return DittoError(
        TOO_LARGE,
        "things:thing.toolarge",
        f"The size of '{size / 1024:.2f}' kB exceeds the maximal allowed Thing size of '{maximum / 1024:.2f}' kB.",
        "Reduce the Thing size in the bounds of the specified limit",
    )


def unknown_path(path: str) -> DittoError:
    """Refuse a path that does not exist in things."""
    return DittoError(
        BAD_REQUEST,
        "protocoladapter:unknown.path",
        f"The path '{shown(path)}' does not correspond to any known command, response or event.",
        "Check if the path is correct.",
    )


def answer_too_large(maximum: int) -> DittoError:
    """Refuse a query whose answer is too large for a message (bytes)."""
    return DittoError(
        TOO_LARGE,
        "things:thing.toolarge",
        f"The answer exceeds the maximal allowed size of '{maximum / 1024:.2f}' kB.",
        "Ask for fewer things, or for some of their fields.",
    )


def internal_error() -> DittoError:
    """Report an internal error."""
    return DittoError(500, "internalerror", "There was an internal error.", "Its cause is in the log of the twin.")


def option_invalid(message: str) -> DittoError:
    """Refuse an option of a search."""
    return DittoError(
        BAD_REQUEST, "thing-search:search.option.invalid", shown(message), "At least one provided option is invalid."
    )
