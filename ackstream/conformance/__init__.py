"""Run Ditto Protocol cases against the library, so that authors of other clients can compare their understanding.

A ``*.jsonl`` file holds one case per line.
"""
