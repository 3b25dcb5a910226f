"""The parts of the Streamr protocol, control layer 0: JSON requests, and frames of four items.

Decoding: `requests` and `timestamps`. Encoding: `messages` (the nine items of a stream message) and `frames` (the eight
kinds of frame); both are also decoded, for clients. `versions` negotiates, `errors` has the errors. `streams` distinguishes
the operator's streams from twins and picks partitions, `events` converts between messages and events, `access` maps keys to
subjects, `options` are the operator's.

Sans-IO state machines with the time as argument: `sessions` (owner, subscriptions and end of each session), `resends` (their
number and rate), `persistence` (where sessions continue after a restart).
"""
