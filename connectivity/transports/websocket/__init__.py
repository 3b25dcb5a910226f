"""The WebSocket listener: each client is a peer with a session of its own."""

CONNECTION_TYPES = {"websocket": "connectivity.transports.websocket.connection_type"}
