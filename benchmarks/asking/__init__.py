"""Requests by record headers from three unchanged producers, three parties that answer by a plan, and an oracle."""
