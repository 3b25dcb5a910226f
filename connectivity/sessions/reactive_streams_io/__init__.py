"""What the desk of reactive-streams-io consists of: sessions, what they are offered, and where its elements come from.

`rooms` has the sessions of one connection, `counterparts` what belongs to one client at one address, `offers` the streams
that it has subscribed to on the engine, `opening` what a publisher string means here, `feeds` how elements are made of what
the store brings. The other way round, `ingesting` has the streams that the service has subscribed to at a client, and
`commanding` what their elements say.
"""
