"""The binary protocol reactive-streams-io, version 0, without any input or output of its own.

Several reactive streams share one duplex connection, at a few octets a frame. From the octets up: `octets` (varints),
`frames` (the table of frames, written), `decoder` (frames read, in whatever pieces they come), `mistakes` and `limits` (what
a peer may get wrong, and where the bounds lie), `publishing` and `subscribing` (the two sides of a stream), `session` (what
outlives a transport), `resumption` (whose session a token names), `endpoint` (one end of one connection). `names` and
`reasons` are what its texts mean here: the publishers that can be asked for, and why something failed.
"""
