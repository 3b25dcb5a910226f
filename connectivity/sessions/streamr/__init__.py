"""What the desk of the Streamr protocol consists of (`connectivity.sessions.streamr.handler`).

`lines` (how a session is sent its frames), `admission` (who asks, and whether he may), `publishing` (messages that are
appended), `live` (what a session follows), `resending` (what it asks for again), `rooms` (the sessions of a connection, and
what each of them has on its way).
"""
