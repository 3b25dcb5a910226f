"""What the documentation says about the connection type AMQP 0.9.1."""

from __future__ import annotations

from connectivity.transports.amqp.consumer import IN_FLIGHT
from connectivity.transports.amqp.link import WINDOW
from connectivity.transports.amqp.options import MOST_BYTES
from tools.docs.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes

MANUAL = Manual(
    family="AMQP",
    title="AMQP 0.9.1",
    introduction="""\
AMQP 0.9.1, as RabbitMQ speaks it. The path of the `uri` is the virtual host, percent-decoded: none or `/%2F` is the host
`/`. Without a user name in it, the [client certificate](#client-certificates) of the connection logs in, else `guest` with
the password `guest`.
""",
    example="examples/connections/back-end.yaml",
    addresses=(
        AddressForm("source", "queue", "the queue of this name", "back-end.ask"),
        AddressForm(
            "target, reply-target", "exchange/routingKey", "what is bound to the exchange", "events/acme.plant"
        ),
        AddressForm("target, reply-target", "/queue", "straight to a queue", "/{{ header:reply-to }}"),
    ),
    address_rules=f"""\
A source's addresses have no placeholders, and its queues must exist. Between exchange and routing key there is exactly one
`/`; the exchange may be empty, the key may not, and a `/` at the end is ignored. A target's address is judged as it is
written, so its expressions must not contain a `/`. A reply-target's address is judged when something is published to it,
since it mostly comes with the request. The usual client names its queue in `reply-to`, which is no address by itself:
`/{{{{ header:reply-to }}}}` makes one of it, as in the first example below. Names and keys have up to {MOST_BYTES} bytes.
""",
    headers=(
        HeaderRule("content-type", "the property, else the table", "table and property"),
        HeaderRule("correlation-id", "the property, else the table", "table and property"),
        HeaderRule("reply-to", "the property, else the table", "table and property"),
        HeaderRule("message-id", "the property, else the table", "table and property"),
        HeaderRule("any other", "the table of headers", "the table of headers"),
    ),
    header_rules="""\
Values that are no text are written as text: `true`, `12.5`, `2030-01-15T07:30:00Z`, lists and tables as JSON, bytes that are
no UTF-8 in base64. An enforcement's input can only be a header.
""",
    outcomes=Outcomes(
        settled="it is acknowledged",
        again="it goes back to its queue and comes at once, marked as redelivered",
        dropped="it is rejected, and goes where the queue sends dead letters",
    ),
    settling_rules="""\
Outcomes reach the broker in the order of arrival. A delivery is named by its message id, else by its correlation id,
as a property or in the payload, and its bytes. One without any id is recognized by its place: what RabbitMQ
redelivers after a lost link is the end of what it has delivered, so it is compared with the last commands that were
carried out, once all of it has come: when the queue sends something new, or a second after the last one. That needs
one consumer for the queue: with several (`consumerCount`, `clientCount`, other programs), or if the last commands are
alike, such a command may be carried out twice. One with the same bytes as the very last command of a link is taken for
that one. Senders that need certainty give each command an id.
""",
    limits=(
        Limit("deliveries of each source that wait for their end", str(IN_FLIGHT)),
        Limit(
            "a larger payload than `limits.payload`", "skipped while it arrives, answered with 413, and acknowledged"
        ),
        Limit("messages that wait for the broker's confirmation", str(WINDOW)),
        Limit("the length of a name or routing key", f"{MOST_BYTES} bytes"),
    ),
    faults=(
        Fault(
            "a queue is missing, or is deleted",
            "status `missing address` with its name; tried again until it is there",
        ),
        Fault(
            "an exchange is missing",
            "a warning `exchange missing` with its name, at the start and when something is to be published there; "
            "its messages fail, nothing else does",
        ),
        Fault(
            "the broker refuses the login, or does not offer its mechanism",
            "status `bad credentials` with the broker's text, or the mechanisms that it offers; tried again",
        ),
        Fault("no queue is bound for a routing key", "the message fails, with exchange and key"),
        Fault(
            "a queue is full and rejects messages (`x-overflow` `reject-publish`)",
            "the message fails; `created`, `complete` and `failed` are sent again, for half a minute at most",
        ),
        Fault(
            "memory or disk alarm",
            "status `refused by broker: the broker blocks publishing` with the broker's reason, and the same in the "
            "log; nothing is published until it is over, then everything in its order; sources slow down as their answers "
            "wait",
        ),
    ),
    notes=(
        Note(
            "Client certificates",
            """\
With `credentials`, the service presents their certificate to a broker that asks for one. The `uri` decides who logs in:

| user name in the `uri` | login mechanism | user |
|---|---|---|
| yes | `PLAIN` | the one of the `uri`, by its password |
| no | `EXTERNAL` | the one that the broker finds in the certificate |

```json
{
  "uri": "amqps://broker.acme.example:5671/fleet",
  "ca": "${file:ca.pem}",
  "credentials": {"type": "client-cert", "cert": "${file:client.crt}", "key": "${file:client.key}"}
}
```

`EXTERNAL` needs RabbitMQ's plugin `rabbitmq_auth_mechanism_ssl` (`rabbitmq-plugins enable rabbitmq_auth_mechanism_ssl`)
and these lines in `rabbitmq.conf`:

```ini
listeners.ssl.1 = 5671
ssl_options.cacertfile = /etc/rabbitmq/ca.pem
ssl_options.certfile = /etc/rabbitmq/broker.crt
ssl_options.keyfile = /etc/rabbitmq/broker.key
# Ask for a client certificate, and refuse clients without one.
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
auth_mechanisms.1 = EXTERNAL
auth_mechanisms.2 = PLAIN
# The user is the common name (CN) of the certificate, not its whole distinguished name.
ssl_cert_login_from = common_name
```

The user must exist. If it logs in by its certificate alone, remove its password: `rabbitmqctl clear_password depot-7`.
Validation refuses a certificate with a `uri` without TLS.
""",
        ),
        Note(
            "Several clients and consumers",
            """\
The clients of a connection (`clientCount`), and the consumers that each has for a queue (`consumerCount`), compete for the
messages of the queues. RabbitMQ hands messages out in the order of the queue, but two that went to different clients may
arrive the other way round; commands of one entity are carried out in the order in which they arrive. A queue with
`x-single-active-consumer` keeps its order: one consumer gets everything, and another takes over when that one is gone.
""",
        ),
        Note(
            "Queues, exchanges and rights",
            """\
Queues and exchanges are yours: the service consumes and publishes, and declares nothing. Its user needs the right to read
the queues of the sources and to write to the exchanges of the answers; none to configure.

Messages are persistent and confirmed.

If a queue has a dead letter exchange, rejected messages are kept there. Give queues of answers a limit
(`x-max-length`, `x-expires`), because the queue of a client that no longer runs is never emptied.
""",
        ),
    ),
    example_uri="amqps://fleet:${env:BROKER_PASSWORD}@broker.acme.example:5671/fleet",
    example_source={
        "headerMapping": {
            "reply-to": "{{ header:reply-to }}",
            "correlation-id": "{{ header:correlation-id }}",
        },
        "replyTarget": {
            "address": "/{{ header:reply-to }}",
            "addressPattern": "/amq.gen-*",
            "headerMapping": {"correlation-id": "{{ header:correlation-id }}"},
        },
    },
)
