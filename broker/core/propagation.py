"""The bindings that one dynamic route has at its source: which are there, which must be, and what is asked for in between.

Life on one connection: `begin` forgets everything; the route asks the source for its exchange (`exchange`) and for the bindings
of its queue, page by page (`page`); `compare` finds the keys whose binding may differ from the interest (broker.core.interest).
`wishes` gives requests for these, a bounded number at a time, and `answered` takes the results. Later changes of the interest
come with `touch`. With each look (`look`), the source says how many bindings the queue has at which exchange; if this is not
what the route has made (`differs`), somebody else has changed them, or the exchange is another one of the same name: all are
read again. While there are requests, the number says nothing, but another exchange is seen (`is_of_another`).
All are also read again once, some time after the beginning (`doubt`): a request of an earlier connection may have been executed
after the first reading.

A binding that the source refuses is left out, and so are bindings beyond the limit of a route, and what the interest leaves out;
`error` names them. `retry` asks for refused ones again.

Invariants: there is at most one request for a key at a time, so requests overtake nothing; a binding whose paths change is bound
again, which replaces its arguments without a gap; at rest, the source has the bindings of the interest, except those that `error`
counts. A change costs as much as itself. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from broker.core import limits
from broker.core.interest import Interest, text_of

_DONE = 200
_NOT_FOUND, _CONFLICT = 404, 409
_THERE = "exists already"
"""Part of the text with which a source refuses a binding that it has."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The route's queue is to be bound with this key and these arguments, or not to be bound with this key (None)."""

    key: str
    arguments: Mapping[str, Any] | None


class Propagation:
    """See the module. `name` is the exchange's, here and at the source; `queue` is the route's at the source."""

    def __init__(self, name: str, queue: str, interest: Interest) -> None:
        self.interest = interest
        self.is_read = False
        """Whether the bindings at the source are known."""
        self._name = name
        self._queue = queue
        self._source = ""
        """The identity of the source's cluster."""
        self._exchange: tuple[str, str] = ("", "")
        """The identity and the kind of the source's exchange."""
        self._has: dict[str, str] = {}
        """Key of a binding at the source -> its arguments, as a text."""
        self._asked: dict[str, str | None] = {}
        """The same for requests without an answer; None: it is to go."""
        self._changed: OrderedDict[str, None] = OrderedDict()
        """Keys that must be compared."""
        self._again: set[str] = set()
        """Those of them that wait for the answer to a request."""
        self._found: deque[str] = deque()
        """Keys of the first comparison that were not looked at yet: those of bindings at the source. They come first."""
        self._rest: deque[str] = deque()
        """Then those of the interest, before those in `_changed`. The first one is not at the source, unless `_found` has any."""
        self._first: set[str] = set()
        """Keys of it that are asked for."""
        self._beyond: OrderedDict[str, None] = OrderedDict()
        """Keys for which there is no room."""
        self._refused: dict[str, str] = {}
        """Key -> why the source has refused the last request for it."""
        self._partial: dict[str, str] = {}
        """Key -> what the interest leaves out."""
        self._comparable = self._doubtful = False

    def __len__(self) -> int:
        """How many bindings there are at the source."""
        return len(self._has)

    def begin(self, source: str) -> None:
        """There is a connection to a source of this identity."""
        self.end()
        self._source = source
        self._has, self._refused, self._partial, self._beyond = {}, {}, {}, OrderedDict()

    def end(self) -> None:
        """There is none any more."""
        self.is_read = self._comparable = self._doubtful = False
        self._asked, self._changed, self._again, self._first = {}, OrderedDict(), set(), set()
        self._found, self._rest = deque(), deque()

    @property
    def is_ready(self) -> bool:
        """Whether everything is done that the first comparison has found."""
        return self.is_read and not (self._found or self._rest or self._first)

    @property
    def is_misled(self) -> bool:
        """Whether the two exchanges do not fit together, and nothing is left to be withdrawn."""
        return bool(self.mismatch) and self.is_read and not (self._asked or self._found or self._rest or self._changed)

    # ---- reading

    def exchange(self, body: Mapping[str, Any]) -> None:
        """The source's answer about its exchange. ValueError: nothing can be made of it."""
        match body.get("items"):
            case [{"uuid": str(uuid), "exchangeType": str(kind)}]:
                self._exchange = uuid, kind
            case _:
                raise ValueError(f"the source does not say what its exchange {self._name!r} is")

    @property
    def mismatch(self) -> str:
        """Why the two exchanges do not fit together; "" if they do, or if there is none here. While they do not, nothing is
        wanted."""
        here, there = self.interest.kind, self._exchange[1]
        if here in ("", there):
            return ""
        return (
            f"exchange {self._name!r} is of type {there} at the source, and of type {here} here: a dynamic route needs one type"
        )

    def page(self, body: Mapping[str, Any]) -> list[Any] | None:
        """Some bindings of the source, in order. Returns the position after which to ask for more, or None when all are known
        that the route's queue has at the exchange. ValueError: nothing can be made of them."""
        mine = (self._name, self._queue)
        items, after = body.get("items"), body.get("next")
        if not isinstance(items, list) or not (after is None or isinstance(after, list)):
            raise ValueError("the source does not say which bindings it has")
        for item in items:
            exchange, queue, key, arguments = _binding(item)
            if (exchange, queue) > mine:
                return None
            if (exchange, queue) == mine:
                self._has[key] = _text(arguments)
        return after

    def read_again(self) -> None:
        """Somebody else has changed the bindings: they are being read again."""
        self.begin(self._source)

    def compare(self) -> None:
        """Everything is read: it is compared with the interest by `wishes`, those first that may have to go, which makes room."""
        self.is_read = True
        self._found, self._rest = deque(self._has), deque(() if self.mismatch else self.interest)

    # ---- changing

    def touch(self, keys: Iterable[str]) -> None:
        """The interest in these keys may have changed."""
        for key in keys:
            if key in self._asked:
                self._again.add(key)
            else:
                self._changed[key] = None

    def retry(self) -> None:
        """Ask once more for some of what was refused; for what was refused longest ago first."""
        self.touch(list(islice(self._refused, limits.BINDINGS_COMPARED)))

    @property
    def may_go_on(self) -> bool:
        """Whether `wishes` has more to compare."""
        return bool(self._found or self._rest or self._changed) and len(self._asked) < limits.BINDINGS_AT_ONCE

    def wishes(self) -> list[Wish]:
        """The requests that may go now. It compares a bounded number of keys."""
        found: list[Wish] = []
        for _ in range(limits.BINDINGS_COMPARED):
            if not self.may_go_on:
                break
            is_first = bool(self._found or self._rest)
            key = (self._found or self._rest).popleft() if is_first else self._changed.popitem(last=False)[0]
            if is_first:
                self._changed.pop(key, None)
            wish = self._compared(key)
            if wish is not None:
                self._comparable = False
                found.append(wish)
                if is_first:
                    self._first.add(key)
            self._pass_over()
        return found

    def _pass_over(self) -> None:
        """Leave out the next keys of the interest that were looked at, because they were at the source, or are asked for. There
        are no more than a route has bindings, and this costs a part of what a comparison costs."""
        while self._rest and not self._found and (self._rest[0] in self._has or self._rest[0] in self._asked):
            self._rest.popleft()

    def _compared(self, key: str) -> Wish | None:
        arguments, why = (None, "") if self.mismatch else self.interest.wanted(key, self._source)
        text = None if arguments is None else text_of(arguments)
        self._beyond.pop(key, None)
        self._partial.pop(key, None)
        if why:
            self._partial[key] = why
        if text == self._has.get(key):
            self._refused.pop(key, None)
            return None
        if text is not None and key not in self._has and not self._has_room():
            self._beyond[key] = None
            return None
        self._asked[key] = text
        return Wish(key, arguments)

    def _has_room(self) -> bool:
        new = sum(text is not None and key not in self._has for key, text in self._asked.items())
        return len(self._has) + new < limits.MAX_ROUTE_BINDINGS

    def answered(self, key: str, status: int, text: str) -> None:
        """The result of the request for this key: the status of the source's answer, and its text if it is a refusal."""
        wanted = self._asked.pop(key)
        self._first.discard(key)
        is_so = status == _NOT_FOUND if wanted is None else status == _CONFLICT and _THERE in text
        self._refused.pop(key, None)
        if status != _DONE and not is_so:
            self._refused[key] = text
        else:
            self._has.pop(key, None)
            if wanted is not None:
                self._has[key] = wanted
        if self._beyond and self._has_room():
            self.touch([self._beyond.popitem(last=False)[0]])
        if key in self._again:
            self._again.discard(key)
            self._changed[key] = None

    # ---- looking

    def look(self) -> None:
        """The source is being asked how many bindings there are."""
        self._comparable = not self._asked

    def differs(self, body: Mapping[str, Any]) -> bool:
        """Whether the source's answer to this shows that the bindings are others than those that the route has made, or they are
        in doubt. A source of an earlier release does not answer this."""
        count = body.get("bindings")
        others = type(count) is int and (body.get("exchange"), count) != (self._exchange[0], len(self._has))
        return self._comparable and (others or self._doubtful)

    def is_of_another(self, body: Mapping[str, Any]) -> bool:
        """Whether this answer shows that the source's exchange is another one now, or that there is none. Requests change the
        number of bindings, but not this."""
        return type(body.get("bindings")) is int and body.get("exchange") != self._exchange[0]

    def doubt(self) -> None:
        """Read them again at the next look."""
        self._doubtful = True

    @property
    def error(self) -> str:
        """Which bindings are not at the source as they must be, and why: the first one, and the number of others. "": all are."""
        if self._beyond:
            most = limits.MAX_ROUTE_BINDINGS
            return f"{len(self._beyond)} bindings are not propagated: a route propagates {most}, those that were made first"
        missing = self._refused or self._partial
        if not missing:
            return ""
        key, why = next(iter(missing.items()))
        others = f" (and {len(missing) - 1} others)" if len(missing) > 1 else ""
        return f"binding {self.interest.shown(key)!r} of {self._name!r}: {why}{others}"


def _binding(item: object) -> tuple[str, str, str, dict[Any, Any]]:
    """Exchange, queue, key and arguments of a binding of the source. ValueError."""
    match item:
        case {"exchange": str(exchange), "queue": str(queue), "key": str(key), "arguments": dict(arguments)}:
            return exchange, queue, key, arguments
        case _:
            raise ValueError("the source does not say which bindings it has")


def _text(arguments: dict[Any, Any]) -> str:
    """The arguments of a binding at the source as a text. ValueError when no binding of a broker of this kind has such."""
    try:
        return text_of(arguments)
    except TypeError as error:
        raise ValueError(f"the source has a binding whose arguments cannot be compared: {error}") from None
