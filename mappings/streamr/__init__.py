"""The parts of the Streamr protocol, control layer 0: JSON objects come in, JSON arrays of four items go out.

Reading: `requests` (which request is it, is each member of its type) and `instants` (the times of publishers). Writing:
`messages` (the nine items of a stream message) and `frames` (the eight kinds of frame around them); both are read back by
those who speak to a service. `versions` says which forms a peer may ask for, `faults` has the words for everything that is
wrong.

Deciding: `names` tells streams from twins, `partitions` picks the partition of a key, `twins` turns an event of a thing or
policy into a message and a published message into a command, `entries` does the same between messages and what the store
keeps. `access` knows who somebody with a key is, `addresses` where answers may go, and `options` what an operator may say
about it all.

What a session may do is decided by machines that know the time only as an argument, and return what is to be done:
`sessions` (whose session it is, what it follows, what ends it), `resends` (how many run, and when one is answered that is
asked in a loop), `sending` (where what is sent live goes on after a restart).
"""
