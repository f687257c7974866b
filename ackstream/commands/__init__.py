"""The commands of ``ackstream``, a module for each group; each has ``register(app)``."""
