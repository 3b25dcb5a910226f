"""Validation of connection documents: shape, rules, JSON Schema."""
