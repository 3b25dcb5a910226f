"""The connectivity service: connections to brokers, twin commands, subscriptions, HTTP API, CLI."""

__version__ = "0.1.0"
