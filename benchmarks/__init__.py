"""Benchmarks: each prints a table and writes its figures with the machine's description; see README.md."""
