"""The TCP listener: each TCP or TLS connection is a peer that sends and receives a stream of bytes."""

CONNECTION_TYPES = {"tcp": "connectivity.transports.tcp.connection_type"}
