"""AMQP 0.9.1 on aio-pika."""

CONNECTION_TYPES = {"amqp-091": "connectivity.transports.amqp.connection_type"}
