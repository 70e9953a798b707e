"""Duplicate detection: a queue remembers the ids of its latest messages, which their senders have set.

Life of a window: a queue is created with the argument `x-duplicate-window` (number of ids) and, optionally,
`x-duplicate-window-ms`. Every broker adds the id of each message to the window when it applies the batch that enqueues the
message. The oldest ids are removed when the window has too many, or when a batch is applied that was made too long after theirs.
Before it enqueues a message, the primary checks the window. If the id is there, or was proposed and is not committed yet, the
message is a duplicate: its sender gets `accepted`, and nothing else happens.

The id is the application property `_AMQ_DUPL_ID`, as in ActiveMQ Artemis; without it, the message-id, as in Azure Service Bus. A
message with neither is never a duplicate.

Invariants: brokers that have applied the same batches have equal windows; a window has at most `count` ids; an id takes 16 bytes,
whatever its sender has set; ids are in the order of their arrival.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from uuid import UUID

from broker.core import limits, message

COUNT, TIME_MS = "x-duplicate-window", "x-duplicate-window-ms"
PROPERTY = "_AMQ_DUPL_ID"
ID_BYTES = 16
_PROPERTY = PROPERTY.encode()
_A_CHUNK = 10_000


def id_of(data: bytes) -> bytes | None:
    """The id of a message as a digest of 16 bytes; None when it has no id. Ids of different types differ."""
    try:
        found = message.application_properties(data).get(PROPERTY) if _PROPERTY in data else None
        if found is None:
            found = message.message_id(data)
    except message.BadMessage:
        return None
    match found:
        case None:
            return None
        case UUID():
            encoded = b"u" + found.bytes
        case bytes():
            encoded = b"b" + found
        case _:
            encoded = f"{type(found).__name__} {found}".encode()
    return blake2b(encoded, digest_size=ID_BYTES).digest()


class Window:
    """See the module. `count`: the maximum number of ids. `time_ms`: the maximum age of an id; 0 for no limit."""

    __slots__ = ("_made", "count", "time_ms")

    def __init__(self, count: int, time_ms: int = 0) -> None:
        self.count = count
        self.time_ms = time_ms
        self._made: dict[bytes, int] = {}
        """Id -> the time when its batch was made. The oldest is first."""

    def __len__(self) -> int:
        return len(self._made)

    def has(self, one: bytes, now_ms: int) -> bool:
        """Whether the window has this id, at the time `now_ms` of the caller's clock."""
        made_ms = self._made.get(one)
        return made_ms is not None and not (self.time_ms and now_ms - made_ms > self.time_ms)

    def came(self, messages: Iterable[bytes], made_ms: int) -> None:
        """Add the ids of these messages, whose batch was made at `made_ms`."""
        for one in map(id_of, messages):
            if one is not None:
                self._made.pop(one, None)
                self._made[one] = made_ms
        self._forget(made_ms)

    def _forget(self, now_ms: int) -> None:
        made = self._made
        for one in list(islice(made, max(0, len(made) - self.count))):
            del made[one]
        if self.time_ms:
            old = []
            for one, made_ms in made.items():
                if now_ms - made_ms <= self.time_ms:
                    break
                old.append(one)
            for one in old:
                del made[one]

    # ---- snapshots

    def chunks(self) -> Iterator[tuple[str, list[int]]]:
        """The content in order, in chunks of at most `_A_CHUNK`: the ids in base64, and their times."""
        made = list(self._made.items())
        for start in range(0, len(made), _A_CHUNK):
            part = made[start : start + _A_CHUNK]
            yield b64encode(b"".join(one for one, _ in part)).decode(), [made_ms for _, made_ms in part]

    def load(self, ids: str, times_ms: list[int]) -> None:
        """Add one chunk of `chunks`. ValueError when it is not valid."""
        data = b64decode(ids, validate=True)
        if len(data) != ID_BYTES * len(times_ms):
            raise ValueError(f"{len(data)} bytes of ids for {len(times_ms)} times")
        for at, made_ms in enumerate(times_ms):
            self._made[data[ID_BYTES * at : ID_BYTES * (at + 1)]] = made_ms


class UnderWay:
    """The ids of messages that a primary has proposed for a queue and that are not committed yet. An id is removed when the
    queue's number of committed messages reaches its number at the proposal."""

    __slots__ = ("_ids", "_order")

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def put(self, messages: Iterable[bytes], proposed: int, came: int) -> None:
        """Add the ids of messages that were just proposed. `proposed` counts all messages proposed for the queue, these included;
        `came` counts the committed ones."""
        self._forget(came)
        for one in map(id_of, messages):
            if one is not None:
                self._ids[one] = proposed
                self._order.append((proposed, one))

    def has(self, one: bytes, came: int) -> bool:
        """Whether a message with this id was proposed and is not committed. `came` counts the queue's committed messages."""
        self._forget(came)
        return one in self._ids

    def _forget(self, came: int) -> None:
        order, ids = self._order, self._ids
        while order and order[0][0] <= came:
            proposed, one = order.popleft()
            if ids.get(one) == proposed:
                del ids[one]


def window_of(arguments: Mapping[str, object]) -> Window | None:
    """The window that a queue's arguments define; None if they define none. ValueError with a text for people."""
    if COUNT not in arguments and TIME_MS not in arguments:
        return None
    count, time_ms = arguments.get(COUNT), arguments.get(TIME_MS)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= limits.MAX_DUPLICATE_IDS:
        raise ValueError(f"{COUNT} is a number of ids from 1 to {limits.MAX_DUPLICATE_IDS}")
    if time_ms is not None and (not isinstance(time_ms, int) or isinstance(time_ms, bool) or time_ms < 1):
        raise ValueError(f"{TIME_MS} is a number of milliseconds from 1 on")
    return Window(count, time_ms or 0)
