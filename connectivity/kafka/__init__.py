"""The link to Kafka on confluent-kafka: settings of the client, records, consuming, publishing, and how a link is made.

`brokers/kafka.py` is the connection type. The client library is imported here and there, and nowhere else.
"""
