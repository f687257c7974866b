"""The demo, and the local Kafka: the wheel includes some of these files, which `shared_with_tests` loads."""

import sys

from ackstream.local.machine import shared_with_tests

# one module for tests and for the commands
sys.modules[f"{__name__}.broker"] = broker = shared_with_tests("demo/broker.py")
