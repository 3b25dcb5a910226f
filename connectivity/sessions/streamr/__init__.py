"""The session handler of the Streamr protocol, for sessions over brokers.

`handler` is its entry; `sessions` has the sessions of a connection, `publishing` appends messages, `live_subscription` and
`resend` read them, `access` checks permissions again, `persistence` and `resumption` keep sessions over restarts.
"""
