"""What doors have in common: the service listens, and whoever connects is a peer, with no broker in between.

Here are a peer's socket as far as every door treats it alike, when a peer's time is up, the link that holds all peers, and
how a port is opened. What the octets mean to the door, and who is let in, is in the door's own folder.
"""
