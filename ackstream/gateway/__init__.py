"""HTTP and WebSocket in front of Kafka: requests go to ``signals`` as Ditto Protocol, answers come from ``replies``."""
