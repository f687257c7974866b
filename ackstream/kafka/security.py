"""``[kafka.security]`` in the words of the two libraries: kafka-python, and the JVM's client in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ackstream.settings.security import KafkaSecurity, Tls

_JAAS = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_JAAS}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_JAAS}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_JAAS}.scram.ScramLoginModule",
}

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
"""The escapes in a quoted text of JAAS, which ends at the end of a line."""


def python_security(security: KafkaSecurity) -> dict[str, Any]:
    """Return the security options of a client of kafka-python."""
    found: dict[str, Any] = {"security_protocol": security.protocol}
    if security.encrypted:
        found["ssl_context"] = security.tls.client_context()
    if security.logs_in:
        found["sasl_mechanism"] = security.mechanism
    if security.by_password and security.password is not None:
        found["sasl_plain_username"] = security.username
        found["sasl_plain_password"] = security.password.reveal()
    return found


def java_security(security: KafkaSecurity) -> dict[str, str]:
    """Return the security options of a client of the JVM."""
    found: dict[str, str] = {"security.protocol": security.protocol}
    if security.encrypted:
        found |= _java_tls(security.tls)
    if security.logs_in and security.mechanism is not None:
        found["sasl.mechanism"] = security.mechanism
    if security.by_password and security.password is not None:
        found["sasl.jaas.config"] = _login(
            _MODULES[str(security.mechanism)], username=security.username, password=security.password.reveal()
        )
    return found


def _java_tls(tls: Tls) -> dict[str, str]:
    found: dict[str, str] = {}
    if tls.ca is not None:
        # the texts themselves: executors have no such files
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": tls.certificates()}
    if not tls.verify_hostname:
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _login(module: str, **options: str) -> str:
    """Return an entry of JAAS: what is quoted may hold any text."""
    given = " ".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in options.items())
    return f"{module} required {given};"
