"""The catalogue of Ditto's errors, with its own codes, texts and descriptions: one factory per Ditto exception.

Source of the texts: the exception classes of Eclipse Ditto (``AcknowledgementLabelInvalidException``,
``DittoHeaderInvalidException``, ``UnknownTopicPathException`` …).
"""

from __future__ import annotations

from ackstream.protocol.errors import (
    BAD_REQUEST,
    CONFLICT,
    REQUEST_TIMEOUT,
    TOO_LARGE,
    UNPROCESSABLE,
    DittoError,
    error_factory,
    shown,
)

# labels

label_invalid = error_factory(
    BAD_REQUEST,
    "acknowledgement:label.invalid",
    "Acknowledgement label <{}> is invalid.",
    "An acknowledgement label must conform to the regular expression of Ditto documentation.",
    "https://www.eclipse.dev/ditto/protocol-specification-topic.html#acknowledgement-criterion-actions",
)

# a built-in label in an acknowledgement from or to the outside
ditto_label_forbidden = error_factory(
    BAD_REQUEST,
    "acknowledgement:ditto.acklabel.forbidden",
    "The Ditto internal Acknowledgement label <{}> is not allowed to be issued externally!",
    "Make sure to not issue an Ditto internal Acknowledgement label.",
)

label_not_declared = error_factory(
    BAD_REQUEST,
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
id_enforcement_failed = error_factory(
    BAD_REQUEST,
    "connectivity:connection.id.enforcement.failed",
    "The configured filters could not be matched against the given target with ID '{}'.",
    "Either modify the configured filter or ensure that the message is sent via the correct ID.",
)

correlation_id_missing = error_factory(
    BAD_REQUEST, "acknowledgement:correlation-id.missing", "Correlation-id header for acknowledgement is missing."
)


def request_parsing_failed(request: str, cause: str | None = None) -> DittoError:
    """Refuse an invalid acknowledgement request; ``cause`` is the message of the underlying error."""
    because = f" Cause: {cause}" if cause else ""
    return DittoError(
        UNPROCESSABLE,
        "acknowledgement:request.parsing.failed",
        f"<{shown(request)}> cannot be parsed to an acknowledgement request!{because}",
        "The string to be parsed must be a valid representation of an acknowledgement request.",
    )


# timeouts, in milliseconds

ack_request_timeout = error_factory(
    REQUEST_TIMEOUT,
    "acknowledgement:request.timeout",
    "The acknowledgement request reached the specified timeout of {:,}ms.",
    "Try increasing the timeout and make sure that the requested acknowledgement is sent back in time.",
)


def command_timeout(timeout: int, note: str | None = None) -> DittoError:
    """Report that the response of a command did not arrive in time.

    :param note: why responses that did arrive were invalid; appended to the description
    """
    message = f"The Command reached the specified timeout of {timeout:,}ms."
    description = "Try increasing the command timeout."
    return DittoError(REQUEST_TIMEOUT, "command.timeout", message, f"{description} {note}" if note else description)


# timeouts above the bound of the HTTP API: the timeout, the bound
_OUT_OF_BOUNDS = "The timeout <{:,}ms> is not inside its allowed bounds <0ms - {:,}ms>"
gateway_timeout_invalid = error_factory(
    BAD_REQUEST, "gateway:timeout.invalid", _OUT_OF_BOUNDS, "Choose a timeout inside the bounds."
)
message_timeout_invalid = error_factory(
    BAD_REQUEST, "timeout.invalid", _OUT_OF_BOUNDS, "Please choose a valid timeout."
)

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


# a timeout of zero if a response or acknowledgements are awaited
zero_timeout = error_factory(
    BAD_REQUEST,
    "header.invalid",
    "The value of the header 'timeout' must not be zero if response or acknowledgements are requested.",
    "Please provide a positive timeout.",
    invalidHeaderKey="timeout",
)

# on a WebSocket
acks_without_response = error_factory(
    BAD_REQUEST,
    "header.invalid",
    "For WebSocket, it is forbidden to request acknowledgements while 'response-required' is set to false.",
    "Please set 'requested-acks' to [] or 'response-required' to true.",
    invalidHeaderKey="requested-acks",
)

# a query that requires no response
command_headers_invalid = error_factory(
    BAD_REQUEST,
    "command.headers.invalid",
    "Query commands must not have the header 'response-required' set to false",
    "Set the header 'response-required' to true instead in order to receive a response to your query command.",
)


# protocol and JSON


def unknown_topic_path(topic: str, description: str = "Check if the topic path is correct.") -> DittoError:
    """Refuse a topic path, or a message whose topic path does not match the rest of it."""
    message = f"The topic path '{shown(topic)}' is not supported."
    return DittoError(BAD_REQUEST, "protocoladapter:unknown.topicpath", message, shown(description))


_CHECK_JSON = "Check if the JSON was valid (e.g. on https://jsonlint.com) and if it was in required format."

# JSON that cannot be parsed or contains a value of the wrong type
json_invalid = error_factory(BAD_REQUEST, "json.invalid", "{}", _CHECK_JSON)

# a JSON text, its pointer, and the type of Ditto that it should have (``Integer`` …)
json_type_invalid = error_factory(BAD_REQUEST, "json.invalid", "Value <{}> for <{}> is not of type <{}>!", _CHECK_JSON)

# the argument is a pointer that starts with a slash
json_field_missing = error_factory(
    BAD_REQUEST,
    "json.field.missing",
    "JSON did not include required <{}> field!",
    "Check if all required JSON fields were set.",
)

json_format_invalid = error_factory(BAD_REQUEST, "json.format.invalid", "{}")

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
target_address_invalid = error_factory(
    BAD_REQUEST, "connectivity:connection.configuration.invalid", "The target address '{}' is invalid.", "{}"
)

# a consumed record is rejected, so that its partition is read again
kafka_message_rejected = error_factory(
    REQUEST_TIMEOUT,
    "connectivity:kafka.message.rejected",
    "The message {} was rejected.",
    "It is consumed again, with all behind it.",
)
