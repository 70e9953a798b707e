"""The lookups of an ACL, and the words of its rules.

A **lookup** is a question: may this user do this action to this object? It contains facts about the object, as named properties.
A rule that names a property which no lookup of its action and object has can never match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALL: Final = "all"
ACTIONS: Final = (
    "access",
    "bind",
    "consume",
    "create",
    "delete",
    "move",
    "publish",
    "purge",
    "redirect",
    "reroute",
    "unbind",
    "update",
)
OBJECTS: Final = ("broker", "connection", "exchange", "link", "method", "query", "queue")

UPPER: Final = {"queuemaxsizeupperlimit": "queuemaxsize", "queuemaxcountupperlimit": "queuemaxcount"}
"""Property of a rule -> the fact that must not be greater, for the rule to allow."""
LOWER: Final = {"queuemaxsizelowerlimit": "queuemaxsize", "queuemaxcountlowerlimit": "queuemaxcount"}
"""Property of a rule -> the fact that must not be smaller, for the rule to allow."""
_QUEUE_LIMITS: Final = frozenset({*UPPER, *LOWER})

_KNOWN_ELSEWHERE: Final = frozenset(
    {
        *("paging", "pageslowerlimit", "pagesupperlimit", "pagefactorlowerlimit", "pagefactorupperlimit"),
        *("filemaxsizelowerlimit", "filemaxsizeupperlimit", "filemaxcountlowerlimit", "filemaxcountupperlimit"),
    }
)
"""Properties of qpidd that no lookup here has."""

_QUEUE: Final = frozenset({"name", "durable", "autodelete", "exclusive", "alternate", "policytype"}) | _QUEUE_LIMITS
_EXCHANGE: Final = frozenset({"name", "durable", "type", "alternate"})

LOOKUPS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("create", "connection"): frozenset({"host"}),
    ("create", "link"): frozenset(),
    ("access", "method"): frozenset({"name", "schemaclass"}),
    ("access", "query"): frozenset({"name", "schemaclass"}),
    ("access", "queue"): _QUEUE,
    ("access", "exchange"): _EXCHANGE,
    ("consume", "queue"): frozenset({"name"}),
    ("publish", "exchange"): frozenset({"name", "routingkey"}),
    ("bind", "exchange"): frozenset({"name", "routingkey", "queuename"}),
    ("unbind", "exchange"): frozenset({"name", "routingkey", "queuename"}),
    ("create", "queue"): _QUEUE,
    ("create", "exchange"): _EXCHANGE,
    ("delete", "queue"): _QUEUE,
    ("delete", "exchange"): _EXCHANGE,
    ("purge", "queue"): frozenset({"name"}),
    ("move", "queue"): frozenset({"name", "queuename"}),
    ("update", "queue"): frozenset({"name"}),
    ("update", "exchange"): frozenset({"name"}),
    ("reroute", "queue"): frozenset({"name", "exchangename"}),
}
"""(action, object) -> the properties that rules about it may name."""

GUARDED: Final = frozenset({("create", "link"), ("access", "method")})
"""Replication and the administration of a cluster: only a rule that names a user or a group allows them, none for `all` does."""

LIMITED: Final = UPPER | LOWER
"""Property of a rule that is a limit -> the fact that it limits."""

PROPERTIES: Final = frozenset().union(*LOOKUPS.values()) | _KNOWN_ELSEWHERE | {"schemapackage"}
"""Every property that a rule may name."""

DEFAULT_EXCHANGE: Final = "amq.default"
"""The name of the default exchange in rules, because its own name is empty. Messages to a queue by its name pass through it."""
