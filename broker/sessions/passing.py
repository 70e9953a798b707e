"""The way of a message through exchanges that number messages or keep the last one (broker.core.passage).

Code that puts messages which an exchange has routed calls `pass_on` for each message just before it puts it. Messages that are
refused, or stay where they are, are not passed on. `too_long` and `too_large` check the messages of producers before that.
"""

from __future__ import annotations

from broker.core import limits
from broker.core.nodes import Routed
from broker.sessions.logs import Logs


def pass_on(logs: Logs, routed: Routed, data: bytes) -> bytes:
    """The message as it is put on its queues, which is about to happen: it goes through the exchanges on its way."""
    for exchange in routed.through:
        assert exchange.passage is not None, "what a message goes through numbers or keeps it"
        ledger = logs.ledger_at(exchange)
        data = exchange.passage.pass_on(routed.key, data, ledger.now_ms, routed.origin)
        ledger.pending.passes(exchange.uuid, exchange.passage)
    return data


def too_long(routed: Routed, nbytes: int) -> str:
    """Why a message of so many bytes cannot go this way, for people: an exchange there is to keep it; "" when it can."""
    for exchange in routed.through:
        if exchange.passage is not None and not exchange.passage.takes(nbytes):
            most = f"takes messages of up to {limits.MAX_INITIAL_VALUE_BYTES} bytes: this one has {nbytes}"
            return f"exchange {exchange.name!r} keeps its last message for queues that are bound next, and {most}"
    return ""


def too_large(routed: Routed) -> str:
    """The same of a large message: no exchange there may number or keep it."""
    for exchange in routed.through:
        most = limits.LARGE_PARTS * limits.PART_BYTES
        return f"exchange {exchange.name!r} numbers or keeps its messages, and takes messages of up to {most} bytes"
    return ""
