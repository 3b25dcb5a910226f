"""The connectivity service: connections to brokers, twin commands, subscriptions, HTTP API, CLI."""
