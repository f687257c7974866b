"""Runs cases and scenarios against the library, so that whoever writes a client can see that both understand the same.

``*.jsonl`` files hold cases of the protocol (:mod:`.cases`), ``*.json`` files scenarios of publishers and consumers
(:mod:`.scenarios`).
"""

from ackstream.conformance.cases import KINDS, Case, check
from ackstream.conformance.files import main, run
from ackstream.conformance.results import CaseFileError, Failure, FileResult

__all__ = ["KINDS", "Case", "CaseFileError", "Failure", "FileResult", "check", "main", "run"]
