"""The session handler of the Streamr protocol, for sessions over brokers.

`handler` is its entry, which also appends messages; `sessions` has the sessions of a connection, `live_subscription` and
`resend` read messages, `access` checks permissions again, `persistence` and `resumption` keep sessions over restarts.
"""
