"""The binary protocol reactive-streams-io, version 0, sans-IO: several streams on one connection.

`session` is the state that outlives a transport, `endpoint` one end of a connection, `decoder` and `frames` the bytes.
"""
