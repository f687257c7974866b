"""ackstream: durable acknowledgements for commands over Kafka."""

import sys

from ackstream.errors import MissingExtras

__version__ = "0.1.0"

sys.meta_path.append(MissingExtras)
