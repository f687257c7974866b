"""Run Ditto Protocol cases against the library, so that authors of other clients can compare their understanding.

A ``*.jsonl`` file holds one case per line.
"""

from ackstream.conformance.cases import KINDS, Case, CaseFileError, Failure, FileResult, check
from ackstream.conformance.runner import main, run

__all__ = ["KINDS", "Case", "CaseFileError", "Failure", "FileResult", "check", "main", "run"]
