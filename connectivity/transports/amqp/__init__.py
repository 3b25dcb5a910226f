"""AMQP 0.9.1 on aiormq."""

CONNECTION_TYPES = {"amqp-091": "connectivity.transports.amqp.connection_type"}
