"""Checks, batch by batch, what the committed log says about an exchange that numbers its messages and keeps the last
one.

Every queue of these runs is bound to the exchange for all messages. So the numbers on a queue have no gaps: from its
first message on, if it was bound before the first message of the exchange, otherwise from the last message that it was
owed. A number belongs to one message.
"""

from __future__ import annotations

import re
from typing import Any

from broker.core import message
from broker.core.passage import SEQUENCE

_TOKEN = re.compile(rb"<[^<>]{3,90}>")
_NAME = SEQUENCE.encode()

Binding = tuple[str, str, str]


class Passing:
    """See the module. What is wrong is added to `faults`."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        self.owing: dict[Binding, int] = {}
        """Bindings that owe their queue something, and the epoch in which they were made."""
        self.passed: dict[str, tuple[Any, ...]] = {}
        """Exchange -> what the log says has gone through it."""
        self._newest = 0
        self._last: dict[str, int] = {}
        """Queue -> the number of its newest message."""
        self._whose: dict[int, bytes] = {}
        self._given: list[str] = []
        """Queues that the batch that is being entered says have got what they were owed."""

    def bound(self, key: Binding, change: dict[str, Any], epoch: int) -> None:
        """A binding is made."""
        if change.get("owes"):
            self.owing[key] = epoch

    def paid(self, key: Binding) -> bool:
        """It owes nothing any more; whether it had."""
        owed = key in self.owing
        self.owing.pop(key, None)
        if owed:
            self._given.append(key[1])
        return owed

    def unbound(self, key: Binding, epoch: int) -> None:
        """It is gone: by a primary of this epoch, which has paid first what the one before owed."""
        if self.owing.pop(key, epoch) != epoch:
            self.faults.append(f"owed: {key} goes in epoch {epoch}, and its queue was owed the last message since an earlier one")

    def left_owing(self, epoch: int) -> list[str]:
        """What is wrong at the end of a run, in this epoch, whose primary may owe what it has just bound."""
        late = [key for key, since in self.owing.items() if since != epoch]
        return [f"owed: a queue is still owed the last message by {key}" for key in late]

    def came(self, index: int, queue: str, data: bytes) -> None:
        """This batch puts a message on the queue of this identity."""
        if _NAME not in data:
            return
        number = int(message.message_annotations(data)[SEQUENCE])
        token = _TOKEN.search(data)
        whose = self._whose.setdefault(number, b"" if token is None else token[0])
        if token is not None and whose != token[0]:
            self.faults.append(f"number: batch {index} gives {token[0]!r} the number {number}, which {whose!r} has")
        said = max((each[0] for each in self.passed.values()), default=0)
        if number > said:
            self.faults.append(f"number: batch {index} puts number {number} on a queue, and by the log {said} have gone through")
        last = self._last.get(queue)
        if last is not None and number != last + 1:
            self.faults.append(f"number: batch {index} puts number {number} on a queue behind number {last}")
        self._last[queue] = number
        self._newest = max(self._newest, number)

    def end_batch(self, index: int) -> None:
        """All of it is entered: who has got what was owed has the newest."""
        for queue in self._given:
            if self._newest and self._last.get(queue) != self._newest:
                has = self._last.get(queue, "none")
                self.faults.append(
                    f"owed: by batch {index} a queue has got the last message, and has {has} where {self._newest} is the last"
                )
        self._given.clear()
