"""The catalogue of Ditto's errors, with its own codes, texts and descriptions: one factory per Ditto exception.

Errors of a single module stand there. Source of the texts: the exception classes of Eclipse Ditto
(``AcknowledgementLabelInvalidException``, ``DittoHeaderInvalidException``, ``ThingNotAccessibleException`` …).
"""

from __future__ import annotations

from ackstream.protocol.errors import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    REQUEST_TIMEOUT,
    TOO_LARGE,
    DittoError,
    bad_request,
    error_factory,
    shown,
)

NOT_MODIFIED = 304
METHOD_NOT_ALLOWED = 405
PRECONDITION_FAILED = 412

# labels

label_invalid = bad_request(
    "acknowledgement:label.invalid",
    "Acknowledgement label <{}> is invalid.",
    "An acknowledgement label must conform to the regular expression of Ditto documentation.",
    "https://www.eclipse.dev/ditto/protocol-specification-topic.html#acknowledgement-criterion-actions",
)

# a built-in label in an acknowledgement from or to the outside
ditto_label_forbidden = bad_request(
    "acknowledgement:ditto.acklabel.forbidden",
    "The Ditto internal Acknowledgement label <{}> is not allowed to be issued externally!",
    "Make sure to not issue an Ditto internal Acknowledgement label.",
)

label_not_declared = bad_request(
    "acknowledgement:label.not.declared",
    "Cannot send acknowledgement with label <{}>, which is not declared.",
    "Each connection may only send acknowledgements whose label matches one declared for the connection.",
)

# a declaration of labels that other subscribers hold
label_not_unique = error_factory(
    CONFLICT,
    "acknowledgement:label.not.unique",
    "One or more declared acknowledgement labels are taken by other subscribers.",
    "Please ensure all other subscribers with the declared acknowledgement labels are offline.",
)

# a message of a source, about the entity of the id, whose sender may not send it
id_enforcement_failed = bad_request(
    "connectivity:connection.id.enforcement.failed",
    "The configured filters could not be matched against the given target with ID '{}'.",
    "Either modify the configured filter or ensure that the message is sent via the correct ID.",
)

correlation_id_missing = bad_request(
    "acknowledgement:correlation-id.missing", "Correlation-id header for acknowledgement is missing."
)

# timeouts, in milliseconds

ack_request_timeout = error_factory(
    REQUEST_TIMEOUT,
    "acknowledgement:request.timeout",
    "The acknowledgement request reached the specified timeout of {:,}ms.",
    "Try increasing the timeout and make sure that the requested acknowledgement is sent back in time.",
)


def command_timeout(timeout: int, note: str | None = None) -> DittoError:
    """Report that no response arrived in time; ``note``: why those that did arrive were invalid."""
    message = f"The Command reached the specified timeout of {timeout:,}ms."
    description = "Try increasing the command timeout."
    return DittoError(REQUEST_TIMEOUT, "command.timeout", message, f"{description} {note}" if note else description)


# headers


def header_invalid(key: str, message: str, description: str | None = None, *, named: bool = True) -> DittoError:
    """Refuse a header for the reason in ``message``; ``named`` adds its name as ``invalidHeaderKey``."""
    return DittoError(
        BAD_REQUEST,
        "header.invalid",
        message,
        description or "Verify that the header has the correct syntax and try again.",
        **({"invalidHeaderKey": key} if named else {}),
    )


def header_too_long(key: str, limit: int) -> DittoError:
    """Refuse a header whose value has more bytes than ``limit``."""
    return header_invalid(key, f"The value of the header '{key}' has more than {limit:,} bytes.", "Use a shorter one.")


def header_type_invalid(key: str, value: str, kind: str) -> DittoError:
    """Refuse a header value of the wrong type (``boolean``, ``JSON array`` …)."""
    return header_invalid(
        key,
        f"The value '{shown(value)}' of the header '{key}' is not a valid {kind}.",
        f"Verify that the value of the header '{key}' is a valid '{kind}' and try again.",
    )


# protocol and JSON


def unknown_topic_path(topic: str, description: str = "Check if the topic path is correct.") -> DittoError:
    """Refuse a topic path, or a message whose topic path does not match the rest of it."""
    message = f"The topic path '{shown(topic)}' is not supported."
    return DittoError(BAD_REQUEST, "protocoladapter:unknown.topicpath", message, shown(description))


_CHECK_JSON = "Check if the JSON was valid (e.g. on https://jsonlint.com) and if it was in required format."

# JSON that cannot be parsed or contains a value of the wrong type
json_invalid = bad_request("json.invalid", "{}", _CHECK_JSON)

# a JSON text, its pointer, and the type of Ditto that it should have (``Integer`` …)
json_type_invalid = bad_request("json.invalid", "Value <{}> for <{}> is not of type <{}>!", _CHECK_JSON)

# the argument is a pointer that starts with a slash
json_field_missing = bad_request(
    "json.field.missing", "JSON did not include required <{}> field!", "Check if all required JSON fields were set."
)

json_format_invalid = bad_request("json.format.invalid", "{}")

# a record and its limit, in bytes
record_too_large = error_factory(
    TOO_LARGE,
    "things:thing.toolarge",
    "The size of '{}' bytes exceeds the maximum of '{}' bytes.",
    "Send less at once.",
)

# a reply and its limit, in bytes
reply_too_large = error_factory(
    TOO_LARGE,
    "reply.toolarge",
    "The reply has {:,} bytes, which is more than the {:,} bytes of a Kafka record.",
    "The request has been decided: the table outcomes has its status, the table acknowledgements what was received.",
)

# the status of an acknowledgement, and its size in bytes
acknowledgement_left_out = error_factory(
    TOO_LARGE,
    "acknowledgement:toolarge",
    "The acknowledgement with status {} has {:,} bytes, for which the reply has no room.",
    "It has been received: it is in the table acknowledgements.",
)

# the name of the failed part
internal_error = error_factory(500, "internalerror", "There was an internal error ({}).", "Its cause is in the log.")

# the feature of Ditto that ackstream lacks, and the reason or an alternative
not_available = error_factory(501, "command.notavailable", "{} is not available.", "{}")

# connections

# the address of a Kafka target, and the error in it
target_address_invalid = bad_request(
    "connectivity:connection.configuration.invalid", "The target address '{}' is invalid.", "{}"
)

# a consumed record is rejected, so that its partition is read again
kafka_message_rejected = error_factory(
    REQUEST_TIMEOUT,
    "connectivity:kafka.message.rejected",
    "The message {} was rejected.",
    "It is consumed again, with all behind it.",
)

# things

OF_REQUESTED = "Check if the ID of your requested Thing was correct and you have sufficient permissions."

unknown_path = bad_request(
    "protocoladapter:unknown.path",
    "The path '{}' does not correspond to any known command, response or event.",
    "Check if the path is correct.",
)

# the thing does not exist, or the requester may not see it
thing_not_found = error_factory(
    NOT_FOUND,
    "things:thing.notfound",
    "The Thing with ID '{}' could not be found or requester had insufficient permissions to access it.",
    OF_REQUESTED,
)

# the requester may see the thing, but not change the part
thing_not_modifiable = error_factory(
    FORBIDDEN,
    "things:thing.notmodifiable",
    "The Thing with ID '{}' could not be modified as the requester had insufficient permissions ('WRITE' is required).",
    OF_REQUESTED,
)

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
id_not_settable = bad_request(
    "things:id.notsettable",
    "The Thing ID in the thing JSON is not equal to the Thing ID in the topic path.",
    "Either delete the Thing ID from the thing JSON or use the same Thing ID as in the topic path.",
)

id_not_deletable = bad_request(
    "things:id.notdeletable",
    "The Thing ID of a Thing cannot be deleted.",
    "Remove the Thing ID entry from the request body and retry the request.",
)

policy_id_not_deletable = bad_request(
    "things:policyId.notdeletable",
    "The Policy ID of a Thing cannot be deleted.",
    "Remove Policy ID entry from the request body and retry the request.",
)

id_invalid = bad_request(
    "things:id.invalid",
    "Thing ID '{}' is not valid!",
    "It must conform to the namespaced entity ID notation (see Ditto documentation)",
    "https://www.eclipse.dev/ditto/basic-namespaces-and-names.html#namespaced-id",
)

definition_invalid = bad_request(
    "things:definition.identifier.invalid",
    "Definition identifier <{}> is invalid!",
    "An identifier string is expected to have the structure 'namespace:name:version' where each segment must"
    " contain at least one char of [_a-zA-Z0-9\\-.] OR it must be a valid HTTP(s) URL.",
)

# a patch that cannot be applied, and why
merge_invalid = bad_request(
    "things:merge.invalid", "The provided JSON Merge Patch is invalid, it must conform to RFC7396.", "{}"
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

twin_failed = error_factory(
    500, "internalerror", "There was an internal error.", "Its cause is in the log of the twin."
)

# why the cursor does not fit the search
cursor_invalid = bad_request(
    "thing-search:search.option.invalid", "The option 'cursor' is not valid for the search request.", "{}"
)

# an option of a search
option_invalid = bad_request("thing-search:search.option.invalid", "{}", "At least one provided option is invalid.")
