"""Metrics, logs, status and traces of connections and of the service."""
