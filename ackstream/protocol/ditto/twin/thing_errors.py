"""Errors of things, with Ditto's codes and texts.

Source of the texts: Eclipse Ditto, the exceptions of ``things/model``.
"""

from __future__ import annotations

from ackstream.protocol.errors import BAD_REQUEST, CONFLICT, FORBIDDEN, NOT_FOUND, DittoError, error_factory, shown

NOT_MODIFIED = 304
METHOD_NOT_ALLOWED = 405
PRECONDITION_FAILED = 412
TOO_LARGE = 413

_CHECK = "Check if the ID of the {} and you have sufficient permissions."
_OF_THING = _CHECK.format("Thing was correct")
_OF_REQUESTED = "Check if the ID of your requested Thing was correct and you have sufficient permissions."
_OF_FEATURE = _CHECK.format("Thing and the Feature ID was correct")
_IN_FEATURE = "of the Feature with ID '{feature}' on the Thing with ID '{thing}'"


unknown_path = error_factory(
    BAD_REQUEST,
    "protocoladapter:unknown.path",
    "The path '{}' does not correspond to any known command, response or event.",
    "Check if the path is correct.",
)

# the thing does not exist, or the requester may not see it
thing_not_found = error_factory(
    NOT_FOUND,
    "things:thing.notfound",
    "The Thing with ID '{}' could not be found or requester had insufficient permissions to access it.",
    _OF_REQUESTED,
)

# the requester may see the thing, but not change the part
thing_not_modifiable = error_factory(
    FORBIDDEN,
    "things:thing.notmodifiable",
    "The Thing with ID '{}' could not be modified as the requester had insufficient permissions ('WRITE' is required).",
    _OF_REQUESTED,
)

# kind of resource: code, message up to "or (the) requester …", description
_NOT_FOUND = {
    "policyId": ("policyId", "The Policy ID of the Thing with ID <{thing}> could not be found", _OF_REQUESTED),
    "definition": (
        "definition",
        "The Definition of the Thing with ID <{thing}> could not be found",
        _CHECK.format("thing and the key of your requested definition was correct"),
    ),
    "attributes": ("attributes", "The Attributes of the Thing with ID '{thing}' could not be found", _OF_THING),
    "attribute": (
        "attribute",
        "The attribute with key '{pointer}' on the thing with ID '{thing}' could not be found",
        _CHECK.format("thing and the key of your requested attribute was correct"),
    ),
    "features": ("features", "The Features on the Thing with ID '{thing}' do not exist", _OF_THING),
    "feature": (
        "feature",
        "The Feature with ID '{feature}' on the Thing with ID '{thing}' could not be found",
        _CHECK.format("Thing and the ID of your requested Feature was correct"),
    ),
    "featureDefinition": ("feature.definition", f"The Definition {_IN_FEATURE} does not exist", _OF_FEATURE),
    "featureProperties": ("feature.properties", f"The Properties {_IN_FEATURE} do not exist", _OF_FEATURE),
    "featureProperty": (
        "feature.property",
        f"The Property with JSON Pointer '{{pointer}}' {_IN_FEATURE} does not exist",
        _CHECK.format("Thing, the Feature ID and the key of your requested property was correct"),
    ),
    "featureDesiredProperties": (
        "feature.desiredProperties",
        f"The desired properties {_IN_FEATURE} do not exist",
        _OF_FEATURE,
    ),
    "featureDesiredProperty": (
        "feature.desiredProperty",
        f"The desired property with JSON Pointer '{{pointer}}' {_IN_FEATURE} does not exist",
        _CHECK.format("Thing, the Feature ID and the key of your requested desired property was correct"),
    ),
}


def part_not_found(thing_id: str, kind: str, feature: str | None, pointer: str) -> DittoError:
    """Report that a thing lacks a part.

    :param kind: that of the part, not ``thing``
    """
    code, message, description = _NOT_FOUND[kind]
    text = message.format(thing=shown(thing_id), feature=shown(feature), pointer=shown(pointer))
    who = "requester" if kind == "policyId" else "the requester"
    hidden = f"or {who} had insufficient permissions to access it."
    return DittoError(NOT_FOUND, f"things:{code}.notfound", f"{text} {hidden}", description)


conflict = error_factory(
    CONFLICT, "things:thing.conflict", "The Thing with ID '{}' already exists", "Choose another Thing ID"
)

# the header, its value, and the entity tag
thing_precondition_failed = error_factory(
    PRECONDITION_FAILED,
    "things:precondition.failed",
    "The comparison of precondition header '{}' for the requested Thing resource evaluated to false."
    " Header value: '{}', actual entity-tag: '{}'.",
    "The comparison of the provided precondition header with the current ETag value of the requested Thing"
    " resource evaluated to false. Check the value of your conditional header value.",
)

# the answer to a query whose if-none-match names the current entity tag; the value of the header, and the tag
not_modified = error_factory(
    NOT_MODIFIED,
    "things:precondition.notmodified",
    "The comparison of precondition header 'if-none-match' for the requested Thing resource evaluated to false."
    " Expected: '{}' not to match actual: '{}'.",
    "The comparison of the provided precondition header 'if-none-match' with the current ETag value of the"
    " requested Thing resource evaluated to false. Check the value of your conditional header value.",
)

# the value of the header
nothing_changed = error_factory(
    PRECONDITION_FAILED,
    "things:precondition.failed",
    "The previous value was equal to the new value and the 'if-equal' header was set to '{}'.",
    "Your changes were not applied, which is probably the expected outcome.",
)

condition_failed = error_factory(
    PRECONDITION_FAILED,
    "things:condition.failed",
    "The specified condition does not match the state of the requested Thing.",
    "The provided condition did not match the actual Thing state. Please check your provided condition.",
)

# a live-channel-condition of a command that is no query
live_channel_condition_unfit = error_factory(
    METHOD_NOT_ALLOWED,
    "things:live.channelcondition.notallowed",
    "The specified 'live-channel-condition' is only allowed to be used for retrieving API calls.",
    "For modifying API calls the 'live-channel-condition' cannot be used, please remove the condition.",
)

# a thing whose id differs from that of the topic.
id_not_settable = error_factory(
    BAD_REQUEST,
    "things:id.notsettable",
    "The Thing ID in the thing JSON is not equal to the Thing ID in the topic path.",
    "Either delete the Thing ID from the thing JSON or use the same Thing ID as in the topic path.",
)

id_not_deletable = error_factory(
    BAD_REQUEST,
    "things:id.notdeletable",
    "The Thing ID of a Thing cannot be deleted.",
    "Remove the Thing ID entry from the request body and retry the request.",
)

policy_id_not_deletable = error_factory(
    BAD_REQUEST,
    "things:policyId.notdeletable",
    "The Policy ID of a Thing cannot be deleted.",
    "Remove Policy ID entry from the request body and retry the request.",
)

id_invalid = error_factory(
    BAD_REQUEST,
    "things:id.invalid",
    "Thing ID '{}' is not valid!",
    "It must conform to the namespaced entity ID notation (see Ditto documentation)",
    "https://www.eclipse.dev/ditto/basic-namespaces-and-names.html#namespaced-id",
)

definition_invalid = error_factory(
    BAD_REQUEST,
    "things:definition.identifier.invalid",
    "Definition identifier <{}> is invalid!",
    "An identifier string is expected to have the structure 'namespace:name:version' where each segment must"
    " contain at least one char of [_a-zA-Z0-9\\-.] OR it must be a valid HTTP(s) URL.",
)


# a patch that cannot be applied, and why
merge_invalid = error_factory(
    BAD_REQUEST,
    "things:merge.invalid",
    "The provided JSON Merge Patch is invalid, it must conform to RFC7396.",
    "{}",
)


# sizes in kB: of the thing as it would be, and the largest
thing_too_large = error_factory(
    TOO_LARGE,
    "things:thing.toolarge",
    "The size of '{:.2f}' kB exceeds the maximal allowed Thing size of '{:.2f}' kB.",
    "Reduce the Thing size in the bounds of the specified limit",
)

# a change of a thing, the quota that has no room for it, and its limit
quota_exceeded = error_factory(
    FORBIDDEN,
    "things:quota.exceeded",
    "The change of the Thing with ID '{}' exceeds the quota '{}' of {}.",
    "Delete things, or parts of them, or ask the operator of the system for a larger quota.",
)

# a query whose answer is larger than a message of the given size in kB
answer_too_large = error_factory(
    TOO_LARGE,
    "things:thing.toolarge",
    "The answer exceeds the maximal allowed size of '{:.2f}' kB.",
    "Ask for fewer things, or for some of their fields.",
)

internal_error = error_factory(
    500, "internalerror", "There was an internal error.", "Its cause is in the log of the twin."
)

# why the cursor does not fit the search
cursor_invalid = error_factory(
    BAD_REQUEST,
    "thing-search:search.option.invalid",
    "The option 'cursor' is not valid for the search request.",
    "{}",
)

# an option of a search
option_invalid = error_factory(
    BAD_REQUEST, "thing-search:search.option.invalid", "{}", "At least one provided option is invalid."
)
