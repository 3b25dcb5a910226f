"""The parts of the Streamr protocol, control layer 0: JSON requests, and frames of four items.

`requests` decodes, `frames` encodes, `errors` has the errors, `auth_keys` maps keys to subjects, `options` are the
operator's. Sans-IO state machines with the time as argument: `sessions` (owner, subscriptions, end and stored rows of each
session) and `resends` (their number and rate). The streams themselves are in `mappings.streams`.
"""
