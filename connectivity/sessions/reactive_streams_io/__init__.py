"""The session handler of reactive-streams-io, for sessions over brokers and listeners.

`handler` is its entry; `sessions` has the sessions of one connection, `peer` one client at one address, `streams` the
published streams, `publishers` the feeds behind publisher strings, `feeds` the encoding of elements. In the other direction,
`ingest` has the streams that the service subscribes to at a client, and `commands` their elements.
"""
