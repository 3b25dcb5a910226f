"""The manual of the connection type AMQP 0.9.1."""

from __future__ import annotations

from connectivity.transports.amqp.consumer import IN_FLIGHT
from connectivity.transports.amqp.link import WINDOW
from connectivity.transports.amqp.options import DIRECT_REPLIES, MOST_BYTES
from tools.docs.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes

MANUAL = Manual(
    family="AMQP",
    title="AMQP 0.9.1",
    introduction="""\
AMQP 0.9.1, as RabbitMQ implements it. The percent-decoded path of the `uri` is the virtual host: no path, or `/%2F`, is the
host `/`. If the `uri` has no user name, the service logs in with the connection's [client
certificate](#client-certificates), or else as `guest` with the password `guest`.
""",
    example="examples/connections/back-end.yaml",
    addresses=(
        AddressForm("source", "queue", "the queue of this name", "back-end.ask"),
        AddressForm(
            "target, reply-target",
            "exchange/routingKey",
            "the queues that are bound to the exchange for this key",
            "events/acme.plant",
        ),
        AddressForm("target, reply-target", "/queue", "the queue of this name, directly", "/{{ header:reply-to }}"),
    ),
    address_rules=f"""\
A source's addresses have no placeholders, and its queues must exist. Between exchange and routing key there is exactly one
`/`; the exchange may be empty, the key may not, and a `/` at the end is ignored. The service validates a target's address
as written in the document, so its expressions must not contain a `/`. It validates a reply-target's address when it
publishes a message, because the address usually comes with the request. Most clients put the name of their queue into
`reply-to`, which is not an address by itself: `/{{{{ header:reply-to }}}}` makes an address from it, as in the first
example below. This includes RabbitMQ's direct replies (`amq.rabbitmq.reply-to`), whose names may contain slashes; the
service cannot detect whether a client reads them. Names and keys have up to {MOST_BYTES} bytes.
""",
    headers=(
        HeaderRule("content-type", "the property, or else the table of headers", "property and table of headers"),
        HeaderRule("correlation-id", "the property, or else the table of headers", "property and table of headers"),
        HeaderRule(
            "reply-to",
            "the property, or else the table of headers",
            f"property and table of headers; `{DIRECT_REPLIES}`, upon which RabbitMQ closes the channel, only the table",
        ),
        HeaderRule("message-id", "the property, or else the table of headers", "property and table of headers"),
        HeaderRule("`CC`, `BCC`", "the table of headers", "not sent: RabbitMQ refuses texts in these headers"),
        HeaderRule("any other", "the table of headers", "the table of headers"),
    ),
    header_rules=f"""\
The service converts values that are not text to text: `true`, `12.5`, `2030-01-15T07:30:00Z`, lists and tables to JSON, and
bytes that are not UTF-8 to base64. An enforcement's input can only be a header. In messages to send, a text with more than
{MOST_BYTES} bytes, such as a long correlation id, is only in the table of headers.
""",
    outcomes=Outcomes(
        settled="the service acknowledges it",
        again="it goes back to its queue, and RabbitMQ delivers it again immediately, marked as redelivered",
        dropped="the service rejects it, and RabbitMQ sends it to the queue's dead letter exchange, if there is one",
    ),
    settling_rules="""\
The service settles deliveries in the order of arrival. A message id identifies a delivery; without one, the correlation id
(as a property or in the payload) and the bytes identify it. The service recognizes a redelivery without any id by its
position. After a lost link, RabbitMQ redelivers the last messages. The service first waits for all redeliveries: until the
queue sends a new message, or until a second has passed since the last redelivery. Then it compares the redeliveries with
the last commands that it has executed. This comparison works only if the queue has one consumer. With several consumers
(`consumerCount`, `clientCount`, other programs), or if the last commands have the same bytes, the service may execute such
a command twice. If a redelivery has the same bytes as the last command of the previous link, the service treats both as the
same command. Senders that must exclude double execution give each command an id.
""",
    limits=(
        Limit("unsettled deliveries of each source", str(IN_FLIGHT)),
        Limit(
            "a larger payload than `limits.payload`",
            "the service skips it while it arrives, returns the error 413, and acknowledges the message",
        ),
        Limit("messages that wait for the broker's confirmation", str(WINDOW)),
        Limit("the length of a name or routing key", f"{MOST_BYTES} bytes"),
    ),
    faults=(
        Fault(
            "a queue is missing, or is deleted",
            "status `missing address` with the name of the queue; the service retries until the queue exists",
        ),
        Fault(
            "an exchange is missing",
            "a warning `exchange missing` with the name of the exchange, at the start and when the service publishes "
            "a message to it; a target with this exchange has the status `misconfigured` until the broker has accepted a "
            "message; only the messages for this exchange fail",
        ),
        Fault(
            "the broker refuses the login, or does not offer its mechanism",
            "status `bad credentials` with the broker's text, or the mechanisms that the broker offers; the service "
            "retries",
        ),
        Fault("no queue is bound for a routing key", "the message fails; the error names exchange and key"),
        Fault(
            "a queue is full and rejects messages (`x-overflow` `reject-publish`)",
            "the message fails; the service sends `created`, `complete` and `failed` again, for half a minute at most",
        ),
        Fault(
            "memory or disk alarm",
            "status `refused by broker: the broker blocks publishing` with the broker's reason, and a log entry with "
            "the same text; the service publishes no message until the alarm is over, then all messages in order; "
            "sources slow down while their responses wait",
        ),
    ),
    notes=(
        Note(
            "Client certificates",
            """\
With `credentials`, the service presents their certificate to a broker that requests a certificate. The `uri` determines the
user:

| user name in the `uri` | login mechanism | user |
|---|---|---|
| yes | `PLAIN` | the user in the `uri`, with the password in the `uri` |
| no | `EXTERNAL` | the user that the broker finds in the certificate |

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

The user must exist. If the user logs in only by certificate, remove the user's password: `rabbitmqctl clear_password
depot-7`. The validation refuses a certificate if the `uri` does not use TLS.
""",
        ),
        Note(
            "Several clients and consumers",
            """\
The clients of a connection (`clientCount`), and the consumers that each has for a queue (`consumerCount`), compete for the
messages of the queues. RabbitMQ distributes messages in the order of the queue, but two messages for different clients may
arrive in another order. The service executes the commands of one entity in the order in which they arrive. A queue with
`x-single-active-consumer` keeps its order: one consumer gets all messages, and another consumer takes over when the first
one disconnects.
""",
        ),
        Note(
            "Queues, exchanges and rights",
            """\
You create the queues and exchanges: the service only consumes and publishes. The service's user at the broker needs read
permission on the queues of the sources and write permission on the exchanges of the responses, but no configure permission.

Use classic or quorum queues. From a stream (`x-queue-type` `stream`), the service receives only messages that are sent while
it is connected, because it does not store positions in streams, and RabbitMQ does not deliver rejected messages again.
A quorum queue drops a message, or sends it to its dead letter exchange, after as many redeliveries as `x-delivery-limit`
allows; redeliveries after a lost link are included.

The service publishes persistent messages, and waits for the broker's confirms.

If a queue has a dead letter exchange, rejected messages are kept there. Give queues for responses a limit (`x-max-length`,
`x-expires`), because no client empties the queue of one that no longer runs.
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
