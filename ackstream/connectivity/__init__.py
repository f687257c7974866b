"""Connections to other Kafka clusters and MQTT brokers: sources bring commands, targets get events and messages."""
