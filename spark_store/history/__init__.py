"""Replay of events into states, and ranges of one entity over journal and lake."""
