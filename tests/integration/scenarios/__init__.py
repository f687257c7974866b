"""Drivers of the scenarios of publishers on the running system: what each step is there, and what can be seen."""
