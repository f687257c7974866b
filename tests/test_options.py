from __future__ import annotations

import pytest
from kafka import KafkaConsumer, KafkaProducer

from ackstream.errors import SettingsError
from ackstream.options import options
from ackstream.settings import Kafka


def test_options_are_those_of_kafka_with_their_types():
    kafka = Kafka(
        options={
            "security.protocol": "SASL_SSL",
            "request.timeout.ms": "5000",
            "ssl.check.hostname": "False",
            "fetch.max.bytes": "7",
            "linger.ms": "3",
        }
    )
    shared = {"security_protocol": "SASL_SSL", "request_timeout_ms": 5000, "ssl_check_hostname": False}
    # what only consumers know is not for producers, and the other way round
    assert options(kafka, KafkaConsumer.DEFAULT_CONFIG) == {**shared, "fetch_max_bytes": 7}
    assert options(kafka, KafkaProducer.DEFAULT_CONFIG) == {**shared, "linger_ms": 3}


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("sasl.jaas.config", "x", "kafka.options has sasl.jaas.config, which the Kafka client does not know"),
        ("request.timeout.ms", "soon", "request.timeout.ms = 'soon', which is not a whole number"),
        ("check.crcs", "1", "check.crcs = '1', which is not true or false"),
    ],
)
def test_an_option_that_is_wrong_is_named(key, value, sentence):
    with pytest.raises(SettingsError, match=sentence):
        options(Kafka(options={key: value}), KafkaConsumer.DEFAULT_CONFIG)
