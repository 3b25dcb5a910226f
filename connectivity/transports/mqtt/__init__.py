"""MQTT 3.1.1 and MQTT 5 on paho-mqtt."""

CONNECTION_TYPES = {"mqtt": "connectivity.transports.mqtt.mqtt311", "mqtt-5": "connectivity.transports.mqtt.mqtt5"}
