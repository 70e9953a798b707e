"""The ACL rules in force: each action of a client is checked before it begins.

Life: without an ACL file everything is allowed, and nothing is checked. With one, each connection, link and management request
asks its `Rights` for the lookups that it needs (`broker.core.acl.questions`). A single message is checked only if its routing
key, or the node that it names, decides. `Guard.enforce` puts new rules in force; its caller then starts a new check of existing
connections and links.

Invariants: an action that is not allowed does not begin; a cached result comes from the rules in force, and from the attributes
that its node has; the number of cached results and the length of their keys are limited; a denial contains the lookup in the
syntax of an ACL file, and nothing that the client has not sent itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core import limits
from broker.core.acl.questions import Lookup, Lookups, publish, shown
from broker.core.acl.rules import MAX_KEPT, Acl, Decision
from broker.core.definitions import Change, ExchangeAltered, QueueAltered
from broker.core.sasl import NOBODY
from broker.sessions.audit import Audit, Who

UNAUTHORIZED = "amqp:unauthorized-access"


class Guard:
    """The rules of a broker, for all of its connections. `quotas`: how many connections, and how many queues, each user may have
    without rules; 0 for any number."""

    def __init__(self, audit: Audit, quotas: tuple[int, int] = (0, 0), realm: str | None = None) -> None:
        self.audit = audit
        self.realm = realm
        """Of the users here, whose messages may not name others as their users. None: they may."""
        self._quotas = quotas
        self.acl: Acl | None = None
        """None: there are no rules, and everything is allowed."""
        self.denied = 0
        """The number of denials; a cached denial counts once."""
        self.kept: dict[tuple[str, str], str] = {}
        """Cached results of `Rights.denial_at`, by user and identity."""

    def enforce(self, acl: Acl) -> None:
        """Put these rules in force."""
        self.acl = acl
        self.kept.clear()

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """A log has applied these changes: the attributes of a queue or exchange, by which rules decide, may be others."""
        if any(isinstance(change, QueueAltered | ExchangeAltered) for change, _ in changes):
            self.kept.clear()

    def connections_of(self, user: str) -> int | None:
        """How many connections this user may have; None for any number."""
        return (self._quotas[0] or None) if self.acl is None else self.acl.connections_of(user)

    def queues_of(self, user: str) -> int | None:
        """How many queues this user may have made; None for any number."""
        return (self._quotas[1] or None) if self.acl is None else self.acl.queues_of(user)

    @property
    def owns_queues(self) -> bool:
        """Whether a new queue's definition contains its owner."""
        return self.acl is not None or self._quotas[1] > 0


class Rights:
    """The rights of `who` by the rules of `guard`."""

    __slots__ = ("guard", "who")

    def __init__(self, guard: Guard, who: Who) -> None:
        self.guard = guard
        self.who = who

    @property
    def user(self) -> str:
        """By this name the rules know it. A name that nothing has shown to be its own counts for nothing."""
        principal = self.who.principal
        return principal.user if principal.authenticated else NOBODY

    @property
    def names(self) -> frozenset[bytes] | None:
        """What its messages may give as their user-id: itself, also without the realm of this broker. None: anything, because
        nothing has shown who it is."""
        realm = self.guard.realm
        if realm is None or not self.who.principal.authenticated:
            return None
        return frozenset(name.encode() for name in (self.user, self.user.removesuffix(f"@{realm}")))

    def denial(self, lookups: Iterable[Lookup]) -> str:
        """Why not all of this may be; "" if it may."""
        acl = self.guard.acl
        if acl is None:
            return ""
        asked = ((lookup, acl.decide(self.user, lookup.action, lookup.kind, lookup.facts)) for lookup in lookups)
        return next((self._text(lookup) for lookup, decision in asked if not self._allows(lookup, decision)), "")

    def objection(self, lookup: Lookup) -> str:
        """Why this may not be, "" if it may, for an action that nobody has tried yet: nothing is logged or counted."""
        acl = self.guard.acl
        allowed = acl is None or acl.decide(self.user, lookup.action, lookup.kind, lookup.facts).allowed
        return "" if allowed else self._objection(lookup)

    def denial_of_connection(self) -> str:
        """Why it may not connect from where it is; "" if it may."""
        if self.guard.acl is None:
            return ""
        host = self.who.address.rpartition(":")[0]
        lookup = Lookup("create", "connection", {"host": host})
        return "" if self._allows(lookup, self.guard.acl.decide_connection(self.user, host)) else self._text(lookup)

    def denial_of_message(self, exchange: str, key: str) -> str:
        """Why it may not send a message with this routing key to an exchange; "" if it may."""
        if self.guard.acl is None:
            return ""
        decision = self.guard.acl.decide_publish(self.user, exchange, key)
        if decision.allowed and not decision.logged:
            return ""
        lookup = publish(exchange, key)
        return "" if self._allows(lookup, decision) else self._text(lookup)

    def denial_at(self, identity: str, lookups: Lookups) -> str:
        """`denial` for the lookups of each message: the result is determined and logged once for a user and the `identity` of a
        node, or for each message if the identity is longer than limits.MAX_SUBJECT_CHARS: it contains the routing key."""
        if self.guard.acl is None:
            return ""
        kept, asked = self.guard.kept, (self.user, identity)
        found = kept.get(asked)
        if found is None:
            found = self.denial(lookups)
            if len(identity) > limits.MAX_SUBJECT_CHARS:
                return found
            if len(kept) >= MAX_KEPT:
                kept.clear()
            kept[asked] = found
        return found

    def decides_by_key(self, exchange: str) -> bool:
        """Whether each message to this exchange must be asked for."""
        return self.guard.acl is not None and self.guard.acl.decides_by_key(self.user, exchange)

    def _allows(self, lookup: Lookup, decision: Decision) -> bool:
        if decision.logged:
            self.guard.audit.decided(self.who, lookup, decision)
        return decision.allowed

    def _text(self, lookup: Lookup) -> str:
        self.guard.denied += 1
        return self._objection(lookup)

    def _objection(self, lookup: Lookup) -> str:
        return f"{shown(self.user)} may not: {lookup}"
