"""Which brokers a cluster has.

Asked for in a thread, by a call that blocks. The one that would not, `describe_cluster`, ends the whole process (an
assertion in librdkafka 2.16) when a broker answers that is just starting and knows of no broker yet.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")


def ask_brokers(admin: AdminClient, patience: float) -> Future[list[tuple[str, int]]]:
    """Host and port of every broker. The future raises KafkaException where none answers within `patience` seconds, or
    where the one that does knows of none."""

    def ask() -> list[tuple[str, int]]:
        # The library's types leave open what a host is.
        return [(str(broker.host), broker.port) for broker in admin.list_topics(timeout=patience).brokers.values()]

    return in_thread(ask)


def in_thread(work: Callable[[], Answer]) -> Future[Answer]:
    """Run `work` in a thread of its own: a few dead name servers would stop everybody in the loop's pool."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # raised where it is waited for
            with contextlib.suppress(Exception):
                answer.set_exception(error)
        else:
            with contextlib.suppress(Exception):
                answer.set_result(result)

    threading.Thread(target=run, name="kafka connect", daemon=True).start()
    return answer
