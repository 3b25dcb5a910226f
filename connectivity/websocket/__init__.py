"""A door for WebSocket clients: the service listens, and whoever connects is a peer with a session of its own.

`brokers/websocket.py` is the connection type; here are its options, who is let in, one peer, and the link; what it shares
with other doors is in `connectivity.doors`. The protocol itself (RFC 6455) is the sans-IO engine of the library
`websockets`, driven by our loop: so a peer costs no task, and reading stops and goes on as the service has room.
"""
