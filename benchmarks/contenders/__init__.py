"""Other implementations of correlate's work, or of a part of it."""
