"""A door for clients that speak over a bare TCP or TLS connection: each octet stream is a peer.

`brokers/tcp.py` is the connection type; here are its options, one peer, the link, and how it is opened. What it shares with
other doors is in `connectivity.doors`. A door cannot find messages in a stream: what is read from it is handed on piece by
piece, and the wire protocol has to take it so.
"""
