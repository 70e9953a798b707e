"""Rules, and how they decide.

Life of a decision: the rules of a user are those that name the user, a group of the user, or `all`, in the order of the file.
The first of them whose action, object and properties match the lookup decides; if none matches, the mode of the file decides. A
user's rules for an action and object are selected once and cached.

Invariants: an `Acl` never changes; equal lookups get equal answers; the caches are bounded in entries and in bytes: a decision
about a routing key of more than limits.MAX_SUBJECT_CHARS is not cached, because a client chooses the key. No rule that denies is
passed by a fact that cannot be compared, or by another name of the same thing.

Source: Qpid C++ broker book, "ACL Rule Matching". Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from broker.core import limits
from broker.core.acl.lookups import ALL, DEFAULT_EXCHANGE, GUARDED, LIMITED, LOOKUPS, UPPER
from broker.core.exchange import Exchange
from broker.core.queues import arguments as queue_arguments

Address = IPv4Address | IPv6Address
Facts = Mapping[str, str | int]
"""The facts of a lookup, by property: texts ("true" and "false" for booleans), and whole numbers for limits."""
MAX_KEPT = 10_000
"""Users' rules that are kept picked out, and decisions about publishing."""
_SUBSTITUTED = re.compile(r"\$\{(userdomain|user|domain)\}")


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it is allowed, whether to log it, and the line of the rule that decided (0: the file's mode, or no rule at all)."""

    allowed: bool
    logged: bool = False
    line: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One `acl` line. `users` None is everybody; `action` and `kind` (of object) None are all of them."""

    line: int
    allows: bool
    logs: bool
    users: frozenset[str] | None
    action: str | None
    kind: str | None
    properties: tuple[tuple[str, str], ...] = ()

    def is_for(self, user: str) -> bool:
        """Whether it is one of this user's."""
        return self.users is None or user in self.users

    def is_about(self, action: str, kind: str) -> bool:
        """Whether it can match lookups of this action and object."""
        return (
            self.action in (None, action)
            and self.kind in (None, kind)
            and all(name in LOOKUPS[action, kind] for name, _ in self.properties)
            and not (self.users is None and self.allows and (action, kind) in GUARDED)
        )

    def decide(self, user: str, facts: Facts) -> Decision | None:
        """Its decision about this lookup; None when it does not match. A limit that is passed makes a denial of an allowance."""
        within = True
        for name, wanted in self.properties:
            limit = LIMITED.get(name)
            if limit is not None:
                fact = facts.get(limit)
                if fact is None:
                    return None
                within &= int(fact) <= int(wanted) if name in UPPER else int(fact) >= int(wanted)
            elif name not in facts or not _matches(name, wanted, str(facts[name]), user, denies=not self.allows):
                return None
        return Decision(self.allows and within, self.logs, self.line)


@dataclass(frozen=True, slots=True)
class HostRule:
    """One `acl ... create connection` line: addresses from `first` to `last`, or (None) every address."""

    line: int
    allows: bool
    logs: bool
    users: frozenset[str] | None
    first: Address | None
    last: Address | None

    def fits(self, host: str) -> bool:
        """Whether this address is one of them. A name is not an address."""
        if self.first is None or self.last is None:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.version == self.first.version and int(self.first) <= int(address) <= int(self.last)


@dataclass(frozen=True, slots=True)
class Acl:
    """A complete file. `mode` decides if no rule matches; `warnings` are lines about rules that can never match."""

    rules: tuple[Rule, ...] = ()
    hosts: tuple[HostRule, ...] = ()
    mode: Decision = Decision(allowed=False)
    max_connections: Mapping[str, int] = field(default_factory=dict)
    """User, or `all`, -> connections at a time."""
    max_queues: Mapping[str, int] = field(default_factory=dict)
    """User, or `all`, -> queues made by that user."""
    warnings: tuple[str, ...] = ()
    _picked: dict[tuple[str, str, str], tuple[Rule, ...]] = field(default_factory=dict, compare=False, repr=False)
    _published: dict[tuple[str, str, str], Decision] = field(default_factory=dict, compare=False, repr=False)
    _by_key: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)

    def decide(self, user: str, action: str, kind: str, facts: Facts) -> Decision:
        """May `user` do it? The lookup is one of `lookups.LOOKUPS`, but for `create connection`: see `decide_connection`."""
        for rule in self._rules_for(user, action, kind):
            decision = rule.decide(user, facts)
            if decision is not None:
                return decision
        return Decision(allowed=False) if (action, kind) in GUARDED else self.mode

    def decide_connection(self, user: str, host: str) -> Decision:
        """Whether `user` may connect from this address. Rules for all users and some addresses are checked first, then those of
        the user, then one for all users and all addresses. Without a matching rule it is allowed."""
        everybody = [rule for rule in self.hosts if rule.users is None]
        by_address = (rule for rule in everybody if rule.first is not None)
        own = (rule for rule in self.hosts if rule.users is not None and user in rule.users)
        for rule in (*by_address, *own, *(rule for rule in everybody if rule.first is None)):
            if rule.fits(host):
                return Decision(rule.allows, rule.logs, rule.line)
        return Decision(allowed=True)

    def decide_publish(self, user: str, exchange: str, key: str) -> Decision:
        """`decide` for a message, by a routing key that is known only now: answers are kept, so that few messages cost more."""
        asked = user, exchange, key
        found = self._published.get(asked)
        if found is None:
            found = self.decide(user, "publish", "exchange", {"name": exchange, "routingkey": key})
            if len(key) > limits.MAX_SUBJECT_CHARS:
                return found
            if len(self._published) >= MAX_KEPT:
                self._published.clear()
            self._published[asked] = found
        return found

    def decides_by_key(self, user: str, exchange: str) -> bool:
        """Whether the routing key of a message decides if `user` may send it to this exchange. The result is cached, because it
        is needed for each batch of messages."""
        asked = user, exchange
        found = self._by_key.get(asked)
        if found is None:
            if len(self._by_key) >= MAX_KEPT:
                self._by_key.clear()
            found = self._by_key[asked] = self._hangs_on_key(user, exchange)
        return found

    def _hangs_on_key(self, user: str, exchange: str) -> bool:
        for rule in self._rules_for(user, "publish", "exchange"):
            named = dict(rule.properties)
            if "name" in named and not _matches("name", named["name"], exchange, user, denies=not rule.allows):
                continue
            return named.get("routingkey", "#") != "#"
        return False

    def connections_of(self, user: str) -> int | None:
        """How many connections this user may have; None for any number."""
        return _quota(self.max_connections, user)

    def queues_of(self, user: str) -> int | None:
        """How many queues this user may have made; None for any number."""
        return _quota(self.max_queues, user)

    def _rules_for(self, user: str, action: str, kind: str) -> tuple[Rule, ...]:
        asked = user, action, kind
        found = self._picked.get(asked)
        if found is None:
            if len(self._picked) >= MAX_KEPT:
                self._picked.clear()
            found = tuple(rule for rule in self.rules if rule.is_for(user) and rule.is_about(action, kind))
            self._picked[asked] = found
        return found


_IN_NAMES: Final = str.maketrans(".@*#", "____")


def _quota(quotas: Mapping[str, int], user: str) -> int | None:
    """A user's own quota, else that of `all`. If there are quotas and none of them applies to the user, it is 0."""
    return quotas.get(user, quotas.get(ALL, 0)) if quotas else None


def substitute(text: str, user: str) -> str:
    """A rule's text with the names of the user in the place of ${user}, ${domain} and ${userdomain}. Dots and @ become _, and so
    do * and #, because a user's name must not be a wildcard."""
    if "${" not in text:
        return text
    name, _, domain = user.partition("@")
    values = {"user": name, "domain": domain, "userdomain": user}
    return _SUBSTITUTED.sub(lambda found: values[found[1]].translate(_IN_NAMES), text)


def _matches(name: str, wanted: str, fact: str, user: str, *, denies: bool) -> bool:
    """Whether a property of a rule matches this fact. `denies`: the rule does not allow."""
    wanted = substitute(wanted, user)
    if name == "routingkey":
        return _fits_topic(wanted, fact) or (denies and len(fact) > limits.MAX_SUBJECT_CHARS)
    if name in ("name", "exchangename") and wanted == DEFAULT_EXCHANGE and not fact:
        return True
    if name == "schemaclass":
        return _fits_text(wanted.lower(), fact.lower())
    if name == "policytype":
        return any(_fits_text(wanted, each) for each in queue_arguments.policy_names(fact))
    return _fits_text(wanted, fact)


def _fits_text(wanted: str, fact: str) -> bool:
    return fact.startswith(wanted[:-1]) if wanted.endswith("*") else fact == wanted


def _fits_topic(pattern: str, key: str) -> bool:
    """As a topic exchange matches: a key of more than limits.MAX_SUBJECT_CHARS is not compared, and fits only "#"."""
    topic: Exchange[str] = Exchange("", "topic")
    topic.bind("", pattern, {})
    return bool(topic.route(key, dict))
