"""What the two MQTT brokers share: options, checks, topics, and the link on paho-mqtt.

`brokers/mqtt.py` (3.1.1) and `brokers/mqtt_5.py` (5) are the connection types; here is what is the same in both. The client
library is imported here and in those two files, and nowhere else.
"""
