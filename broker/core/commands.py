"""The commands of a log: the content of DEFINE records, and the machine version that a broker must have to apply each.

Life of a command: a primary creates one (`QueueAdd(...)`), and its `text` goes into a batch. Each broker reads it with `decode`
and applies it to its definitions (broker.core.definitions). A snapshot has the commands that are still in force.

A text is one JSON object, and its `op` tells the kind of command. `needs` is the machine version that a broker must have to apply
the command correctly; a text without `needs` needs version 1. A new `op`, or a new field that changes the meaning of a known one,
must raise `needs`, because an older broker would apply the command differently. A field that older brokers may ignore must not.

The forms (machine version 1 unless a version is in parentheses)::

    queue-add     uuid name level durable autoDelete exclusive arguments alternate [number] [owner] [subscription] [lifetime]
    queue-del     uuid
    store-add     uuid arguments [number]     creates a place for messages of a queue that another log defines (level
                                              configuration)
    store-del     uuid
    exchange-add  uuid name kind level durable arguments alternate [lifetime]
    exchange-del  uuid
    bind          exchange queue key arguments     uuids; the uuid of a built-in exchange is its name
    unbind        exchange queue key
    reign         epoch primary reason ts gapMs     a broker became the primary
    numbers       next, seqs                        last command of a snapshot, and only there: the counters to continue from

    machine-version     needs     (2) from this index on, the cluster has the machine version `needs`
    recent-ids          uuid ids times (5)  only in snapshots: a queue's window of duplicates, the oldest ids first
    setting             key value (4) sets the cluster's value for this key; {} removes it
    queue-del-if-empty  uuid      (2) deletes a queue, if it has no message when the command is applied

    origin-add      drain store queue into [number]    (5) messages of this queue of another store may come to the queue `into`
    origin-release  drain                              (5) the drain has ended: its origins are dropped, their messages refused
    origin-forget   drain                              (5) the release of this drain need not be remembered any more

    route-add       uuid kind source exchange key [tag] [exclude] [mechanism] [ending]    (6) fetches messages from `source`;
                                                           (10) with the kind "dynamic"
    route-del       uuid                               (6) deletes the route, and what is remembered of its messages
    link-add        user container link into keptS [number]  (6) the messages that this sending link of a client puts on the
                                                             queue `into` are numbered, and their numbers are remembered
    link-forget     user container link into           (6) the numbers of this link need not be remembered any more

    alter           uuid arguments alternate applies   (6) a queue or an exchange has these arguments and this alternate exchange
                                                           from this index on; the arguments need machine version `applies`

    policy-add      kind pattern attributes [byUse]    (7) new queues or topics whose names match get these attributes, unless the
                                                           client asks for others (broker.core.policies)
    policy-del      kind pattern                       (7) deletes a policy

    exchange-passed exchange sequence [key] [value] [expiresMs] [availableMs]   (8) how many messages have gone through an
                                                           exchange that numbers them; if it keeps the last one, also this message
    value-given     exchange queue key                 (8) the queue has got the message that its binding owed it

Version 3 brought no command; since then a log may have LARGE records (broker.core.records).

Version 5 brought queues whose messages leave by themselves (`x-delivery-limit`, `x-message-ttl`), and arguments of queues that
older releases refuse (broker.core.queues.arguments); a `queue-add` with one of these arguments needs version 5. Since then a log
may have TIMES and HELD records, and the setting `leaving` (broker.core.origins).

Version 6 brought queues of subscriptions (broker.core.subscriptions); a `queue-add` with `subscription` needs version 6, because
an older primary would put messages on such a queue that its filters exclude. It also brought numbered links; their HELD records
are those of origins. Since then a log may have FORGOTTEN and NOTES records.

Version 7 brought policies: an older primary would create queues without them.

Version 8 brought exchanges that number their messages or keep the last one (broker.core.passage). An `exchange-add` that asks for
this needs version 8. So does a `bind` with `owes`, because the queue must get the message that the exchange has kept.

Version 9 brought queues whose groups of messages have owners (broker.core.queues.owned). It has no new command. Since then a log
may have OWNERS records.

Version 10 brought dynamic routes (broker.core.propagation). A `route-add` of this kind needs version 10: an older primary would
take it for a route with an empty key. So does a `bind` that replaces the arguments of a binding by others that differ from them
only in type, such as `true` instead of 1: older releases take them for the same; and one that makes a binding again which still
owes: it owes on, where older releases drop the debt. Another `bind` may be under way, so every one with a number or a boolean in
its arguments needs version 10, as soon as the cluster has it. A `bind` that needs less is applied as they do it.

Invariants: a snapshot writes the text that was read, byte for byte, including fields that this version does not know (only a
number that was assigned meanwhile is added); a command that this version cannot apply becomes an `UnknownCommand`, never a guess;
equal commands of one version have equal texts.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import msgspec

MACHINE_VERSION = 10
"""The newest machine version that this release applies: its commands and its records."""
LARGE_SINCE = 3
"""The machine version that brought LARGE records."""
ORIGINS_SINCE = 5
"""The machine version that brought HELD records, and the commands of drains."""
TIMES_SINCE = 5
"""The machine version that brought TIMES records and delivery limits."""
ROUTES_SINCE = 6
"""The machine version that brought routes and FORGOTTEN records."""
SUBSCRIPTIONS_SINCE = 6
"""The machine version that brought queues of subscriptions."""
NOTES_SINCE = 6
"""The machine version that brought NOTES records."""
LINKS_SINCE = 6
"""The machine version that brought numbered links."""
POLICIES_SINCE = 7
"""The machine version that brought policies."""
PASSAGE_SINCE = 8
"""The machine version that brought exchanges which number their messages, or keep the last one."""
OWNERS_SINCE = 9
"""The machine version that brought OWNERS records."""
DYNAMIC_SINCE = 10
"""The machine version that brought dynamic routes."""
EXACT_SINCE = 10
"""The machine version since which a `bind` may compare arguments exactly, and keep a debt: see the module."""

Key = tuple[str, str, str]
"""A binding's identity: exchange, queue and key."""


class Command(msgspec.Struct, frozen=True, kw_only=True, dict=True, rename="camel"):
    """One change of the definitions of a log. `needs` is the lowest machine version that applies it."""

    OP: ClassVar[str] = ""
    SINCE: ClassVar[int] = 1
    """The machine version that brought this op."""

    needs: int = 1

    @cached_property
    def text(self) -> bytes:
        """The JSON object: the text that was read, or for a new command a text with sorted keys."""
        return _to_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The members of the JSON object that this version knows."""
        return {"op": self.OP} | {
            name: value
            for name, value in zip(self.__struct_encode_fields__, map(self._value_of, self.__struct_fields__), strict=True)
            if _LEFT_OUT.get(name, _ALWAYS) != value
        }

    def _value_of(self, field: str) -> Any:
        return getattr(self, field)


_ALWAYS = object()
_LEFT_OUT: dict[str, Any] = {
    "needs": 1,
    "number": None,
    "owner": "",
    "subscription": {},
    "lifetime": "",
    "by": "",
    "planned": False,
    "estimated": False,
    "sourceEpoch": 0,
    "tag": "",
    "exclude": [],
    "mechanism": "",
    "ending": False,
    "byUse": False,
    "owes": False,
    "value": "",
    "expiresMs": 0,
    "availableMs": 0,
}
"""Members that are left out of the text when they have this value."""


class QueueAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Defines a queue. `number` identifies it in records of messages; None until the state assigns one. `owner` is the user who
    created it, "" when no rules were in force; older releases keep it in the text, but do not count queues by owner.
    `subscription`: the terms of the subscription whose queue this is (broker.core.subscriptions); {} for none. `lifetime`: the
    lifetime policy of a dynamic node (broker.core.dynamic), "" for other nodes; a dynamic node ends with its broker's process."""

    OP: ClassVar[str] = "queue-add"

    uuid: str
    name: str
    level: str
    durable: bool = False
    auto_delete: bool = False
    exclusive: bool = False
    arguments: dict[str, Any] = {}
    alternate: str = ""
    number: int | None = None
    owner: str = ""
    subscription: dict[str, Any] = {}
    lifetime: str = ""


class QueueDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes a queue."""

    OP: ClassVar[str] = "queue-del"

    uuid: str


class StoreAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Creates a place for the messages of a queue that another log defines. `arguments` are the arguments of that queue, which
    decide its kind."""

    OP: ClassVar[str] = "store-add"

    uuid: str
    arguments: dict[str, Any] = {}
    number: int | None = None


class StoreDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes a place that `StoreAdd` created."""

    OP: ClassVar[str] = "store-del"

    uuid: str


class ExchangeAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Defines an exchange. `lifetime`: see QueueAdd."""

    OP: ClassVar[str] = "exchange-add"

    uuid: str
    name: str
    kind: str
    level: str
    durable: bool = False
    arguments: dict[str, Any] = {}
    alternate: str = ""
    lifetime: str = ""


class ExchangeDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes an exchange."""

    OP: ClassVar[str] = "exchange-del"

    uuid: str


class Bind(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Binds a queue to an exchange, or changes the arguments of a binding. `owes`: the queue has not yet got the last message of
    the exchange, which it gets if the binding matches this message."""

    OP: ClassVar[str] = "bind"

    exchange: str
    queue: str
    key: str
    arguments: dict[str, Any] = {}
    owes: bool = False

    @property
    def identity(self) -> Key:
        """Identifies the binding."""
        return self.exchange, self.queue, self.key


class Unbind(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes a binding."""

    OP: ClassVar[str] = "unbind"

    exchange: str
    queue: str
    key: str

    @property
    def identity(self) -> Key:
        """Identifies the binding."""
        return self.exchange, self.queue, self.key


class Term(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A broker became the primary at `ts` (ISO 8601), `gap_ms` after the last time with a primary (-1: unknown). `by`: the kind
    of cluster manager that asked for it ("": none, or an older release). `planned`: another broker served until then.
    `estimated`: the gap is the time since the last batch of the previous primary, by the clocks of two brokers. Brokers that do
    not know these three fields ignore them."""

    OP: ClassVar[str] = "reign"
    """The name in the log. The stores of all releases have it, so it cannot change."""

    epoch: int = 0
    primary: str = ""
    reason: str = ""
    ts: str = ""
    gap_ms: int = -1
    by: str = ""
    planned: bool = False
    estimated: bool = False


class Alter(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Replaces all arguments of a queue or an exchange, and its alternate exchange ("" for none). A broker must have machine
    version `applies` to apply the arguments."""

    OP: ClassVar[str] = "alter"
    SINCE: ClassVar[int] = 6

    uuid: str
    arguments: dict[str, Any] = {}
    alternate: str = ""
    applies: int = 1
    needs: int = 6


class Numbers(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The counters of a snapshot: the next queue number, and (number, next sequence) of each lane of each queue."""

    OP: ClassVar[str] = "numbers"

    next: int
    seqs: list[tuple[int, int]]


class MachineVersion(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """From this index on, the cluster has the machine version `needs`."""

    OP: ClassVar[str] = "machine-version"
    SINCE: ClassVar[int] = 2

    needs: int = 2


class QueueDelIfEmpty(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes a queue if it has no message at this index."""

    OP: ClassVar[str] = "queue-del-if-empty"
    SINCE: ClassVar[int] = 2

    uuid: str
    needs: int = 2


class Setting(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Sets the cluster's value for a key (ha.core.cluster_settings), until another value replaces it; {} removes it."""

    OP: ClassVar[str] = "setting"
    SINCE: ClassVar[int] = 4

    key: str
    value: dict[str, Any] = {}
    needs: int = 4


class RecentIds(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The content of a queue's window of duplicates (`duplicates.Window.chunks`): ids of 16 bytes in base64, and for each id the
    time, in ms since 1970, at which its batch was made."""

    OP: ClassVar[str] = "recent-ids"
    SINCE: ClassVar[int] = 5

    uuid: str
    ids: str
    times: list[int]
    needs: int = 5


class OriginAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The messages of the queue `queue` of another store, `store`, may come to the queue `into`, in this `drain` of that store.
    All four are uuids; `queue` also names the store if no other store has its messages (`broker.core.origins.named`).

    `number` identifies the origin in HELD records; None until the state assigns one. The same origin with another `into` changes
    the queue to which its messages come.

    For the origin of a route, `drain` is the uuid of the route, `queue` also names the store, and `into` is "". `source_epoch` is
    the highest epoch in which a primary of the source has sent messages: a primary with a lower epoch has been deposed, and may
    send the same messages again. For the origin of a drain, `source_epoch` is 0 until the drainer reports that all messages that
    can come have come, and then 1. While it is 0, a subscription to which the messages come is paused."""

    OP: ClassVar[str] = "origin-add"
    SINCE: ClassVar[int] = 5

    drain: str
    store: str
    queue: str
    into: str
    number: int | None = None
    source_epoch: int = 0
    needs: int = 5

    @property
    def identity(self) -> tuple[str, str]:
        """Identifies the origin."""
        return self.drain, self.queue


class OriginRelease(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """This drain has emptied its store, and has ended: the origins of the drain are dropped, and their messages are refused from
    now on."""

    OP: ClassVar[str] = "origin-release"
    SINCE: ClassVar[int] = 5

    drain: str
    needs: int = 5


class OriginForget(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The drained store knows that it was released, so the drain need not be remembered any more."""

    OP: ClassVar[str] = "origin-forget"
    SINCE: ClassVar[int] = 5

    drain: str
    needs: int = 5


class RouteAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Defines a route: messages are fetched from another broker or cluster at the URL `source`, which contains no password.

    `kind` "queue": they come from its queue `key`. `kind` "exchange": they come from its exchange `exchange`, those with the
    routing key `key`. `kind` "dynamic" (machine version 10): they come from its exchange `exchange`, those that a binding of
    this cluster's exchange of the same name matches; `key` is "". They go to the exchange `exchange` of this cluster, or to the
    queue of this name if there is no such exchange. `tag` is added to the annotation `x-opt-qpid-hops` of each message; a message
    that has any name of `exclude` in this annotation is dropped (broker.core.hops). `mechanism`: of SASL, "" for the best one.
    The same uuid again with `ending`: the route is deleted as soon as its source knows that."""

    OP: ClassVar[str] = "route-add"
    SINCE: ClassVar[int] = 6

    uuid: str
    kind: str
    source: str
    exchange: str
    key: str
    tag: str = ""
    exclude: list[str] = []
    mechanism: str = ""
    ending: bool = False
    needs: int = 6

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Identifies the route: there is one route for each identity."""
        return self.kind, self.source, self.exchange, self.key


class RouteDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes a route."""

    OP: ClassVar[str] = "route-del"
    SINCE: ClassVar[int] = 6

    uuid: str
    needs: int = 6


LinkKey = tuple[str, str, str, str]
"""Identifies a numbered link: user, container, name and queue (uuid)."""


class LinkAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Defines a numbered link: `user` sends numbered messages from `container` over the link named `link` to the queue `into` (a
    uuid). The log remembers which of them have come, until `kept_s` seconds after the link was last attached.

    `number` identifies the link in HELD records; None until the state assigns one. The same link with another `kept_s` changes
    the time."""

    OP: ClassVar[str] = "link-add"
    SINCE: ClassVar[int] = 6

    user: str
    container: str
    link: str
    into: str
    kept_s: int
    number: int | None = None
    needs: int = 6

    @property
    def identity(self) -> LinkKey:
        """Identifies the numbered link."""
        return self.user, self.container, self.link, self.into


class LinkForget(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes a numbered link that was not attached again in time, and what is remembered of its messages."""

    OP: ClassVar[str] = "link-forget"
    SINCE: ClassVar[int] = 6

    user: str
    container: str
    link: str
    into: str
    needs: int = 6

    @property
    def identity(self) -> LinkKey:
        """Identifies the numbered link."""
        return self.user, self.container, self.link, self.into


class PolicyAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Defines a policy: a new queue (`kind` "queue") or exchange (`kind` "topic") whose name matches `pattern` gets these
    attributes, unless the request that creates it has others. `by_use`: such a node is created when a client attaches to it. The
    same kind and pattern again replaces the policy."""

    OP: ClassVar[str] = "policy-add"
    SINCE: ClassVar[int] = 7

    kind: str
    pattern: str
    attributes: dict[str, Any] = {}
    by_use: bool = False
    needs: int = 7

    @property
    def identity(self) -> tuple[str, str]:
        """Identifies the policy."""
        return self.kind, self.pattern


class PolicyDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Deletes a policy. Nodes that were created with it do not change."""

    OP: ClassVar[str] = "policy-del"
    SINCE: ClassVar[int] = 7

    kind: str
    pattern: str
    needs: int = 7


class ExchangePassed(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """`sequence` messages have gone through an exchange. If the exchange keeps the last one: its routing `key`, the message as
    base64 ("" for none), when it expires (ms since 1970, 0: never), and from when on it may be delivered (ms since 1970, 0: at
    once)."""

    OP: ClassVar[str] = "exchange-passed"
    SINCE: ClassVar[int] = 8

    exchange: str
    sequence: int
    key: str = ""
    value: str = ""
    expires_ms: int = 0
    available_ms: int = 0
    needs: int = 8


class ValueGiven(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The queue has got the message that this binding owed it, or there was no such message."""

    OP: ClassVar[str] = "value-given"
    SINCE: ClassVar[int] = 8

    exchange: str
    queue: str
    key: str
    needs: int = 8

    @property
    def identity(self) -> Key:
        """Identifies the binding."""
        return self.exchange, self.queue, self.key


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that this version must not apply; `why` names it, and the machine version that it needs."""

    op: str
    why: str
    text: bytes


class _Head(msgspec.Struct):
    op: str = ""
    needs: int = 1


_KINDS: dict[str, type[Command]] = {
    kind.OP: kind
    for kind in (
        *(QueueAdd, QueueDel, StoreAdd, StoreDel, ExchangeAdd, ExchangeDel, Bind, Unbind, Term, Numbers),
        *(MachineVersion, QueueDelIfEmpty, RecentIds, Setting, OriginAdd, OriginRelease, OriginForget),
        *(LinkAdd, LinkForget, RouteAdd, RouteDel, Alter, PolicyAdd, PolicyDel, ExchangePassed, ValueGiven),
    )
}
_head = msgspec.json.Decoder(_Head).decode
_READERS = {op: msgspec.json.Decoder(kind).decode for op, kind in _KINDS.items()}


def decode(text: bytes, version: int = MACHINE_VERSION) -> Command | UnknownCommand:
    """The command of a DEFINE record, for a broker that applies commands up to machine version `version`. Never raises."""
    try:
        head = _head(text)
        if head.needs > version:
            return UnknownCommand(head.op, f"{head.op!r} needs machine version {head.needs}", text)
        kind = _KINDS.get(head.op)
        if kind is None or version < kind.SINCE:
            return UnknownCommand(head.op, f"{head.op!r} is unknown", text)
        command = _READERS[head.op](text)
    except msgspec.ValidationError as error:
        return UnknownCommand("", f"{text!r:.200} is not a command: {error}", text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(text, version)
    vars(command)["text"] = text
    return command


def _decode_leniently(text: bytes, version: int) -> Command | UnknownCommand:
    """Decode a text with Python's own JSON parser, which also accepts values outside of the standard, such as NaN. There are
    stores that have such values in arguments."""
    try:
        fields = json.loads(text)
        kind = _KINDS[fields["op"]]
        command = msgspec.convert(fields, kind)
    except (ValueError, KeyError, TypeError) as error:
        return UnknownCommand("", f"{text!r:.200} is not a command: {error}", text)
    if max(command.needs, kind.SINCE) > version:
        return UnknownCommand(kind.OP, f"{kind.OP!r} needs machine version {max(command.needs, kind.SINCE)}", text)
    vars(command)["text"] = text
    return command


Altered = TypeVar("Altered", QueueAdd, ExchangeAdd)


def altered(command: Altered, by: Alter) -> Altered:
    """The command with other arguments and another alternate exchange, also in its text; unknown fields stay."""
    needs = max(command.needs, by.applies)
    made = msgspec.structs.replace(command, arguments=by.arguments, alternate=by.alternate, needs=needs)
    more = {"arguments": by.arguments, "alternate": by.alternate} | ({"needs": needs} if needs > 1 else {})
    vars(made)["text"] = _to_json(json.loads(command.text) | more)
    return made


def paid(bind: Bind) -> Bind:
    """The binding without `owes`, also in its text; unknown fields stay."""
    made = msgspec.structs.replace(bind, owes=False)
    vars(made)["text"] = _to_json({name: value for name, value in json.loads(bind.text).items() if name != "owes"})
    return made


def still_owing(bind: Bind) -> Bind:
    """The binding with `owes`, also in its text; unknown fields stay."""
    made = msgspec.structs.replace(bind, owes=True, needs=max(bind.needs, PASSAGE_SINCE))
    vars(made)["text"] = _to_json(json.loads(bind.text) | {"owes": True, "needs": made.needs})
    return made


def same_text(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a log has the same text for both. For Python 1, 1.0 and True are equal; for a headers binding they are not."""
    return _to_json(one) == _to_json(other)


def same_arguments(known: dict[str, Any], bind: Bind) -> bool:
    """Whether a binding that has these arguments stays as it is when it is made again so. A command that every release applies is
    compared as the first ones do it: otherwise the brokers of a cluster would differ while some of them are upgraded."""
    return known == bind.arguments and (bind.needs < EXACT_SINCE or same_text(known, bind.arguments))


Numbered = TypeVar("Numbered", QueueAdd, StoreAdd, OriginAdd, LinkAdd)


def numbered(command: Numbered, number: int) -> Numbered:
    """The command with its number, also in its text; unknown fields stay."""
    if command.number == number:
        return command
    made = msgspec.structs.replace(command, number=number)
    vars(made)["text"] = _to_json(json.loads(command.text) | {"number": number})
    return made


def unstorable(value: Any) -> str:
    """Why a command cannot hold this value of a request, because JSON has no such value, as a text for the user; "" if it can.
    NaN would also differ from itself, so nothing with it could be recognised as the same."""
    match value:
        case None | bool() | int() | str():
            return ""
        case float():
            return "" if math.isfinite(value) else f"{value!r} is not a finite number, and no definition can hold it"
        case dict():
            odd = [key for key in value if not isinstance(key, str)]
            if odd:
                return f"{odd[0]!r:.80} is the name of an entry of a map, but not a text"
            return next(filter(None, map(unstorable, value.values())), "")
        case list():
            return next(filter(None, map(unstorable, value)), "")
        case _:
            return f"{value!r:.80} is binary or a uuid, which no definition can hold"


def _to_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
