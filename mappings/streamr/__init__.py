"""The parts of the Streamr protocol, control layer 0: JSON objects come in, JSON arrays of four items go out.

Reading: `requests` (which request is it, is each member of its type) and `instants` (the times of publishers). Writing:
`messages` (the nine items of a stream message) and `frames` (the eight kinds of frame around them); both are read back by
those who speak to a service. `versions` says which forms a peer may ask for, `names` tells streams from twins, `faults` has
the words for everything that is wrong.
"""
