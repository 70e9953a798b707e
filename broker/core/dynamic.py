"""Nodes that are created by an attach: dynamic nodes with a lifetime policy, and nodes whose names match a pattern of the
broker's options.

Life of a dynamic node: an attach requests it, with or without a lifetime policy. It is created under a name of the broker's
choice. The link that created it ends; from then on, or at once, the policy decides only by links and messages.

Source: AMQP 1.0 parts 3.5.9 to 3.5.13 (lifetime policies, and `delete-on-close` if none is requested); qpidd's options
`queue-patterns` and `topic-patterns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from broker.core.filters import Filter


class LifetimePolicy(StrEnum):
    """When a dynamic node goes, once the link has ended that made it."""

    ON_CLOSE = "delete-on-close"
    ON_NO_LINKS = "delete-on-no-links"
    ON_NO_MESSAGES = "delete-on-no-messages"
    ON_NO_LINKS_OR_MESSAGES = "delete-on-no-links-or-messages"

    def ends(self, links: int, messages: int) -> bool:
        """Whether a node with so many links and messages goes now."""
        match self:
            case LifetimePolicy.ON_CLOSE:
                return True
            case LifetimePolicy.ON_NO_LINKS:
                return not links
            case LifetimePolicy.ON_NO_MESSAGES:
                return not messages
        return not links and not messages


_NAMES = {
    name: policy
    for code, policy in enumerate(LifetimePolicy, 0x2B)
    for name in (hex(code), f"amqp:{policy}:list")  # a descriptor is a code or a name
}
_KEY = "lifetime-policy"
WILD = frozenset("*?[")
"""Characters by which a pattern is more than the beginning of names."""


def policy_of(properties: Iterable[Filter]) -> LifetimePolicy:
    """The policy among the properties of a dynamic node, which have the form of filters. ValueError when it is not one that there
    is."""
    found = [
        each.name for each in properties if each.name in _NAMES or each.name.startswith(("amqp:", "0x")) or each.name == _KEY
    ]
    unknown = [name for name in found if name not in _NAMES]
    if unknown or len(found) > 1:
        raise ValueError(f"a dynamic node has one lifetime policy, of {', '.join(LifetimePolicy)}; not {', '.join(found)}")
    return _NAMES[found[0]] if found else LifetimePolicy.ON_CLOSE


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether a name matches one of these patterns. A pattern with `*`, `?` or `[...]` matches like file names; another one is a
    prefix."""
    return any(fnmatchcase(name, each) if not WILD.isdisjoint(each) else name.startswith(each) for each in patterns)
