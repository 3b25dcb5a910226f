"""AMQP 0.9.1: options, addresses, tables, and the link on aiormq.

`brokers/amqp_091.py` is the connection type; here is what it stands on. aiormq (the part of aio-pika that speaks the
protocol) greets the broker, logs in, opens channels, declares and consumes; what comes and goes by the thousand (deliveries,
publishes, confirms, acknowledgements) never enters it: `traffic.py` takes these frames out of the stream and puts ours in.
"""
