"""The terminal: tables and durations to print, and signals and Spark behind a command."""
