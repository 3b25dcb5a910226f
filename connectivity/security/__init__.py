"""Egress rules, TLS, URIs, redaction of secrets, and keys."""
