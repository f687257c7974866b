"""ackstream: durable acknowledgements for commands over Kafka."""

__version__ = "0.1.0"
