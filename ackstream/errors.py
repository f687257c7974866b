"""The product's own errors: what was wrong, where, and what to do.

Errors that go over the wire to a requester are a different thing: see ``protocol.errors``.
"""


class AckstreamError(Exception):
    """Root of the tree. The text is one sentence (or a few) that a person can act on."""


class SettingsError(AckstreamError):
    """A setting is unknown, malformed or contradicts another; names the key, the value and the fix."""


class LocalError(AckstreamError):
    """A local part (Java, jars, the one-node broker, a port) is not as needed; names the remedy."""


class StartError(AckstreamError):
    """A job must not start like this (other checkpoint values, a topic with the wrong configuration)."""
