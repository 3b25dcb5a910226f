"""Runs connections: brokers, sources, reply-targets, the subscription engine, twin commands, HTTP API and CLI."""
