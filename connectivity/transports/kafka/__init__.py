"""Kafka on confluent-kafka."""

CONNECTION_TYPES = {"kafka": "connectivity.transports.kafka.connection_type"}
