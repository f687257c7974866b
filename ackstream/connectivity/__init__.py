"""Connections to other systems: sources bring commands and messages, targets get events and messages."""
