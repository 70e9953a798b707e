"""Messages with a time that are delivered earlier, by their sequences: deferred messages return in this way.

Life of a request: it names sequences, which `PEEK` lists. Those that still wait get a time that has passed, in one batch of the
log. When it is committed, they are available in their old places, to any consumer, and the answer contains their number.

Invariants: a sequence that does not wait, because it was delivered, was removed, or never had a time, is counted as left out and
is not changed; a message that a consumer has got before the batch is committed stays with this consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.core.commands import TIMES_SINCE
from broker.core.nodes import Refused
from broker.sessions.queue_terminus import QueueTerminus

OPERATION = "DELIVER"
MOST = 1000
"""Maximum number of sequences in a request."""


def asked_of(body: Mapping[str, Any]) -> list[int]:
    """The sequences in a request's body. ValueError."""
    asked = body.get("sequences")
    if not isinstance(asked, list) or not 1 <= len(asked) <= MOST:
        raise ValueError(f"`sequences` is a list of 1 to {MOST} sequences of messages that wait (`PEEK` shows them)")
    for each in asked:
        if type(each) is not int or each < 0:
            raise ValueError(f"a sequence is a number of 0 or more, and not {each!r}")
    return list(dict.fromkeys(asked))


def deliver(queue: QueueTerminus, sequences: list[int], done: Callable[[dict[str, Any]], None]) -> None:
    """End the waiting of these messages. `done` gets the body of the answer when this is committed. It is not called if the
    broker stops serving before that. Refused."""
    messages, ledger = queue.node.messages, queue.ledger
    assert messages is not None, "who asks has looked"
    if ledger.version < TIMES_SINCE:
        until = "all brokers of the cluster must be connected and support it first"
        raise Refused(409, f"messages wait only from machine version {TIMES_SINCE} on: {until}")
    delays = messages.delays
    found = [] if delays is None else [each for each in sequences if delays.is_waiting(each)]
    for sequence in found:
        ledger.end_wait(messages.number, sequence)

    def committed() -> None:
        queue.due.look()
        done({"count": len(found), "left": len(sequences) - len(found)})

    ledger.pending.when_committed(committed)
