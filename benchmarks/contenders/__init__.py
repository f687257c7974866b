"""Other ways to do what correlate does, or a part of it."""
