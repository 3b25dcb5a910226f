"""The parts that the codec of the Ditto protocol is made of; `mappings/mappers/ditto.py` joins them.

Reading: `document` (is it a message at all), `paths` (which resource), `streaming` and `instants` (the commands of
subscriptions). Writing: `writing` (answers, events, signals of a subscription) and `items` (the elements of one, in
bulk). `faults` has the words for everything that is wrong with a message.
"""
