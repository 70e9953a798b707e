"""Named subscriptions: the terms that a client requests, the queue of the subscription, and the messages that this queue accepts.

Life of a subscription: a client attaches a link to an exchange, and the subscription must outlive the link or is shared with
others. A queue is created, whose definition contains the terms, and is bound to the exchange. A later attach with the same name
and terms gets this queue. The queue's gate accepts the messages that the filters match. It is made from the terms, so a new
primary routes as the last one did, whether a consumer is attached or not.

Invariants: two subscriptions have the same queue name only if they are the same; terms that are written and read again are equal;
a selector is compiled when the first message needs it, so a backup compiles none.

Source: Qpid JMS' names of links (`NAME`, `NAME|global`, `NAME|2`, `NAME|volatile1`); JMS 2.0 section 8.3 (durable, shared).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from broker.core.filters import BINDINGS, NO_LOCAL, Filter, filters_of
from broker.core.selector.selected import Selector, selected

SHARED: Final = "shared"
"""Capability of a source: several links may have the subscription."""
GLOBAL: Final = "global"
"""Capability of a source: it belongs to no container."""
DELIMITER: Final = "|"
"""Ends the name of a shared subscription in the name of its link; the rest distinguishes its links."""

Origin: TypeAlias = tuple[int, str]
"""Where a message comes from: the number of the connection (0: it has been here before), and its client's container."""
NOWHERE: Final[Origin] = (0, "")
Gate: TypeAlias = Callable[[bytes, Origin], bool]
"""Whether a message is wanted, by its bytes and its origin."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The requested terms of a subscription. `container`: its owner, "" for all clients; `filters`: encoded in AMQP, in base64;
    `lasting`: it stays when its last link has ended."""

    container: str
    name: str
    address: str
    shared: bool
    lasting: bool
    filters: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Terms:
        """The terms that a definition of a queue holds."""
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """The terms for the definition of a queue."""
        return asdict(self)

    @property
    def queue(self) -> str:
        """The name of its queue: the container and its own name, with a dot between them."""
        name = f"{_escaped(self.container).replace('.', '%2E')}.{_escaped(self.name)}"
        return name if self.lasting else f"{name}{DELIMITER}volatile"

    @property
    def encoded_filters(self) -> bytes:
        """The filters as they came, b"" for none."""
        return base64.b64decode(self.filters)

    @property
    def asked(self) -> list[Filter]:
        """The filters."""
        encoded = self.encoded_filters
        return filters_of(encoded) if encoded else []

    def means(self, other: Terms) -> bool:
        """Whether a client with these terms gets the same messages as the others."""
        return self.address == other.address and sorted(self.asked, key=repr) == sorted(other.asked, key=repr)

    def gate(self) -> Gate | None:
        """The gate that decides which of the exchange's messages are put on its queue; None: all."""
        asked = self.asked
        return _Gate(self.container, asked) if any(each.name not in BINDINGS for each in asked) else None


def moved(queue: str, fields: Any) -> dict[str, Any]:
    """The terms for the definition of a queue of this name, which was a subscription's queue on another broker: the fields of its
    terms. ValueError when these are not valid, belong to another queue, or the subscription does not last."""
    try:
        terms = Terms.of(fields)
        selected(terms.asked)
        fits = terms.queue == queue and terms.lasting is True and type(terms.shared) is bool and type(terms.address) is str
        fits = fits and base64_of(terms.encoded_filters) == terms.filters
    except (TypeError, ValueError) as error:
        raise ValueError(f"it cannot be the queue of a subscription: {error}") from None
    if not fits:
        raise ValueError(f"it cannot be the queue of the subscription {terms.name!r} of {terms.container!r}")
    return terms.to_dict()


def base64_of(encoded: bytes) -> str:
    """How terms hold filters."""
    return base64.b64encode(encoded).decode()


def named(link: str, *, shared: bool) -> str:
    """The name of the subscription that a link of this name is for."""
    return link.partition(DELIMITER)[0] if shared else link


class _Gate:
    """See `Terms.gate`. Messages of any connection of the same container count as local."""

    __slots__ = ("_asked", "_compiled", "_container", "_no_local", "_selector")

    def __init__(self, container: str, asked: list[Filter]) -> None:
        self._asked = asked
        self._no_local = any(each.name == NO_LOCAL for each in asked)
        self._container = container
        self._selector: Selector | None = None
        self._compiled = False

    def __call__(self, data: bytes, origin: Origin) -> bool:
        if not self._compiled:
            self._selector, self._compiled = selected(self._asked), True
        if self._no_local and origin[1] == self._container:
            return False
        return self._selector is None or self._selector.takes(data)


def _escaped(text: str) -> str:
    """The text, with characters escaped that have a meaning in the name of a queue."""
    return re.sub(r"[%|$\x00-\x1f]", lambda found: f"%{ord(found[0]):02X}", text)
