"""The binary protocol reactive-streams-io, version 0, sans-IO.

Several reactive streams share one duplex connection, at a few bytes per frame. From the bytes up: `varints`, `frames` (table
and encoder), `decoder`, `errors` and `limits`, `publisher` and `subscriber` (the two sides of a stream), `session` (outlives
a transport), `resumption` (tokens), `endpoint` (one end of a connection). `publisher_names` parses publisher strings,
`elements` encodes events.
"""
