"""ackstream in memory, for the unit tests of programs that use it: no Spark, no Kafka, and no waiting.

Feed commands, answers and time; read replies and events. All decisions are those of the jobs: their own pure code runs.
"""

from ackstream.testing.memory import TopicRecord as TopicRecord
from ackstream.testing.queue import QueueSystem
from ackstream.testing.system import RequestSystem

__all__ = ["QueueSystem", "RequestSystem", "TopicRecord"]
