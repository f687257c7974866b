"""Doors for Spark jobs of applications: requests from DataFrames, outcomes as rows, acknowledgements after a batch."""

from ackstream.dataframe.outcomes import register as register
from ackstream.dataframe.requests import acknowledge as acknowledge
