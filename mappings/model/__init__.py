"""Signals, envelopes, headers, and the other terms that all protocols share."""
