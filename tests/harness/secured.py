"""The secured local broker, with further listeners: other logins, and certificates that are not to be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ackstream.settings import Kafka, Local, Settings
from ackstream.settings.kafka import KafkaSecurity
from tests.demo import secured
from tests.harness.certificates import DAY
from tests.harness.cluster import START_TIMEOUT
from tests.harness.ports import free_ports
from tests.harness.tokens import AUDIENCE

LISTENERS = {"plain": "SASL_SSL", "mutual": "SSL", "bearer": "SASL_SSL", "expired": "SSL", "open": "SASL_PLAINTEXT"}
"""Beside that of ``ackstream up --secure``, which is for SCRAM."""

USER, PASSWORD = "me", "s3\"cret\\ '"
_JAAS = "org.apache.kafka.common.security"
_FURTHER = """
listener.security.protocol.map=SECURED:SASL_SSL,CONTROLLER:SSL,{protocols}
listeners=SECURED://{client},CONTROLLER://{controller},{listeners}
advertised.listeners=SECURED://{client},{listeners}
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config={jaas}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.open.sasl.enabled.mechanisms=PLAIN
listener.name.open.plain.sasl.jaas.config={jaas}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.mutual.ssl.client.auth=required
listener.name.expired.ssl.keystore.location={expired}
listener.name.bearer.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.bearer.oauthbearer.sasl.jaas.config={jaas}.oauthbearer.OAuthBearerLoginModule required;
listener.name.bearer.oauthbearer.sasl.server.callback.handler.class={jaas}.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwt.validator.class={jaas}.oauthbearer.BrokerJwtValidator
sasl.oauthbearer.jwks.endpoint.url={keys}
sasl.oauthbearer.expected.audience={audience}
"""


class SecuredBroker(secured.SecuredBroker):
    """That of ``ackstream up --secure``, on free ports."""

    def __init__(self, directory: Path, keys: str) -> None:
        """Prepare it.

        :param keys: the URL of the authorisation server's keys
        """
        port, controller, *further = free_ports(2 + len(LISTENERS))
        local = Local(data=directory, port=port, controller_port=controller, start_timeout=START_TIMEOUT)
        super().__init__(Settings(local=local))
        self._further = dict(zip(LISTENERS, further, strict=True))
        self._keys = keys

    @property
    def directory(self) -> Path:
        """Where its authority is."""
        return self._home

    @property
    def ca(self) -> Path:
        return self._home / "ca.pem"

    def by(self, listener: str, **security: Any) -> Kafka:
        """Return settings of a listener; its CA is trusted unless ``tls`` says otherwise."""
        protocol = LISTENERS[listener]
        if protocol.endswith("SSL"):
            security["tls"] = {"ca": self.ca} | security.get("tls", {})
        bootstrap = f"localhost:{self._further[listener]}"
        return Kafka(bootstrap=bootstrap, security=KafkaSecurity.model_validate({"protocol": protocol} | security))

    def _own_properties(self) -> str:
        before = super()._own_properties()
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        listeners = ",".join(f"{name.upper()}://localhost:{port}" for name, port in self._further.items())
        further = _FURTHER.format(
            protocols=",".join(f"{name.upper()}:{protocol}" for name, protocol in LISTENERS.items()),
            client=self.bootstrap,
            controller=f"localhost:{self._local.controller_port}",
            listeners=listeners,
            jaas=_JAAS,
            user=USER,
            # a properties file has escapes of its own
            password=password.replace("\\", "\\\\"),
            expired=secured.Authority(self._home).issue("expired", -DAY),
            keys=self._keys,
            audience=AUDIENCE,
        )
        # of two lines with one key Java takes the last
        return before + further
