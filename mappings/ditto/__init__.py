"""The parts of the Ditto protocol's codec, which `mappings/mappers/ditto.py` joins.

Decoding: `document`, `paths`, `subscriptions`, `live` and `timestamps`. Encoding: `writer` (responses, events, signals of
subscriptions) and `messages` (elements of subscriptions, in bulk). `errors` has the errors of invalid messages.
"""
