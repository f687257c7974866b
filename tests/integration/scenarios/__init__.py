"""Drivers of scenarios on the running system: each step's effect there, and everything visible."""
