"""The commands of a log: what one DEFINE record says, typed by its `op`, and how much a broker must know to apply it.

Life of a command: a primary makes one (`QueueAdd(...)`), its `text` goes into a batch, every broker reads it back with `decode`
and gives it to its definitions (broker.core.definitions); a snapshot writes down those that still hold.

A text is one JSON object. `needs` is the machine version that a broker must have to apply the command as it is meant; a text
without it needs version 1. Whoever writes what an older broker would apply differently, a new `op` or a field that changes the
meaning of a known one, raises `needs`. Whoever writes what an older broker may ignore adds a field and nothing else.

The forms (version 1 unless said)::

    queue-add     uuid name level durable autoDelete exclusive arguments alternate [number] [owner] [subscription] [lifetime]
    queue-del     uuid
    store-add     uuid arguments [number]     a place for the messages of a queue that another log defines (level configuration)
    store-del     uuid
    exchange-add  uuid name kind level durable arguments alternate [lifetime]
    exchange-del  uuid
    bind          exchange queue key arguments     by uuid; a built-in exchange's uuid is its name
    unbind        exchange queue key
    reign         epoch primary reason ts gapMs     a broker became primary
    numbers       next, seqs                        only in snapshots, last: the counters to go on from

    machine-version     needs     (2) from here on the cluster has the version that this needs
    recent-ids          uuid ids times (5)  only in snapshots: what a queue's window of duplicates holds, the oldest first
    setting             key value (4) what the cluster agrees on under this key; {} for nothing any more
    queue-del-if-empty  uuid      (2) the end of a queue, if it holds no message when this is applied

    origin-add      drain store queue into [number]    (5) messages of this queue of another store come to the queue `into`
    origin-release  drain                              (5) no more come of this drain: what is held of its origins is forgotten
    origin-forget   drain                              (5) that it was released is forgotten

    route-add       uuid kind source exchange key [tag] [exclude] [mechanism] [ending]    (6) messages are fetched from there
    route-del       uuid                               (6) they are no more: what is held of the route is forgotten
    link-add        user container link into keptS [number]  (6) what this sending link of a client puts on the queue `into` is
                                                             numbered, and remembered
    link-forget     user container link into           (6) no more, nor what was

    alter           uuid arguments alternate applies   (6) a queue, or an exchange, has these arguments and this alternate
                                                           exchange from here on; the arguments count for machine version
                                                           `applies`

    policy-add      kind pattern attributes [byUse]    (7) a queue, or a topic, whose name matches is made with these, where
                                                           nobody asks for others (broker.core.policies)
    policy-del      kind pattern                       (7) it is not any more

    exchange-passed exchange sequence [key] [value] [expiresMs] [availableMs]   (8) so many messages have gone through an exchange
                                                           that numbers them; the last one was this, of one that keeps it
    value-given     exchange queue key                 (8) the queue has got what its binding owed it

Version 3 brought no command: from it on a log may have LARGE records (broker.core.records). Version 5 brought queues whose
messages leave by themselves (`x-delivery-limit`, `x-message-ttl`), and arguments of queues that older releases refuse
(broker.core.queues.arguments): a `queue-add` with one of them needs it. From it on a log may have TIMES and HELD records, and
the setting `leaving` (broker.core.origins). Version 6 brought queues that stand for subscriptions (broker.core.subscriptions): a
`queue-add` with `subscription` needs it, for an older primary would put messages on such a queue that its filters keep away. It
also brought links whose messages are numbered; their HELD records are those of origins. From it on a log may have FORGOTTEN
records. Version 7 brought policies: an older primary would make queues without them. Version 8 brought exchanges that number
what goes through them, or keep the last of it (broker.core.passage): an `exchange-add` that asks for it needs it, and so does a
`bind` that `owes`, because the queue is to get what the exchange has kept.

Invariants: the text that was read is the text that a snapshot writes, byte for byte, with fields that this version does not know
(a number that was given meanwhile is added to it); a command that this version cannot apply is an `UnknownCommand` and never a
guess; equal commands made by one version have equal texts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import msgspec

MACHINE_VERSION = 8
"""The newest version of the commands and records that this release applies."""
LARGE_SINCE = 3
"""The machine version that brought LARGE records."""
ORIGINS_SINCE = 5
"""The machine version that brought HELD records, and the commands of drains."""
TIMES_SINCE = 5
"""The machine version that brought TIMES records and delivery limits."""
ROUTES_SINCE = 6
"""The machine version that brought routes and FORGOTTEN records."""
SUBSCRIPTIONS_SINCE = 6
"""The machine version that brought queues which stand for subscriptions."""
NOTES_SINCE = 6
"""The machine version that brought NOTES records."""
LINKS_SINCE = 6
"""The machine version that brought links whose messages are numbered."""
POLICIES_SINCE = 7
"""The machine version that brought policies."""
PASSAGE_SINCE = 8
"""The machine version that brought exchanges which number what goes through them, or keep the last of it."""

Key = tuple[str, str, str]
"""A binding's identity: exchange, queue and key."""


class Command(msgspec.Struct, frozen=True, kw_only=True, dict=True, rename="camel"):
    """One change of what a log defines. `needs` is the least machine version that applies it."""

    OP: ClassVar[str] = ""
    SINCE: ClassVar[int] = 1
    """The machine version that brought this op."""

    needs: int = 1

    @cached_property
    def text(self) -> bytes:
        """The JSON object: the one that was read, else one with sorted keys."""
        return _to_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The object's members as this version knows them."""
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
"""Members that are not written while they have this value."""


class QueueAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A queue. `number` is what records of its messages name it by; None until a state has given it one. `owner` is the user who
    made it, "" where no rules were in force; older releases carry it, and count no queues by it. `subscription`: the terms of the
    subscription that it stands for (broker.core.subscriptions); {} for none. `lifetime`: of a dynamic
    node, its policy (broker.core.dynamic); such a node goes with its broker's process."""

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
    """The end of a queue."""

    OP: ClassVar[str] = "queue-del"

    uuid: str


class StoreAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A place for the messages of a queue that another log defines. `arguments` are that queue's: they say what kind it is."""

    OP: ClassVar[str] = "store-add"

    uuid: str
    arguments: dict[str, Any] = {}
    number: int | None = None


class StoreDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The end of such a place."""

    OP: ClassVar[str] = "store-del"

    uuid: str


class ExchangeAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """An exchange. `lifetime`: see QueueAdd."""

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
    """The end of an exchange."""

    OP: ClassVar[str] = "exchange-del"

    uuid: str


class Bind(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A queue bound to an exchange, or bound anew with other arguments. `owes`: the queue is to get the last message that has
    gone through the exchange, if the binding matches it, and has not got it yet."""

    OP: ClassVar[str] = "bind"

    exchange: str
    queue: str
    key: str
    arguments: dict[str, Any] = {}
    owes: bool = False

    @property
    def identity(self) -> Key:
        """What the binding is known by."""
        return self.exchange, self.queue, self.key


class Unbind(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The end of a binding."""

    OP: ClassVar[str] = "unbind"

    exchange: str
    queue: str
    key: str

    @property
    def identity(self) -> Key:
        """What the binding is known by."""
        return self.exchange, self.queue, self.key


class Term(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A broker became primary: `ts` in ISO 8601, `gap_ms` without a primary before (-1: not known). `by`: the kind of cluster
    manager that had asked ("": none, or an older release); `planned`: another broker served until then; `estimated`: the gap is
    counted from the last batch before, by the clocks of two brokers. Who does not know these three does without."""

    OP: ClassVar[str] = "reign"
    """The name in the log: stores of every release have it."""

    epoch: int = 0
    primary: str = ""
    reason: str = ""
    ts: str = ""
    gap_ms: int = -1
    by: str = ""
    planned: bool = False
    estimated: bool = False


class Alter(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A queue or an exchange has these arguments, all of them, and this alternate exchange, "" for none, from here on. A broker
    must have the machine version `applies` to apply the arguments."""

    OP: ClassVar[str] = "alter"
    SINCE: ClassVar[int] = 6

    uuid: str
    arguments: dict[str, Any] = {}
    alternate: str = ""
    applies: int = 1
    needs: int = 6


class Numbers(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Where a snapshot's counters stood: the next queue number, and (number, next sequence) of each queue."""

    OP: ClassVar[str] = "numbers"

    next: int
    seqs: list[tuple[int, int]]


class MachineVersion(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """From here on the cluster has the version that this `needs`."""

    OP: ClassVar[str] = "machine-version"
    SINCE: ClassVar[int] = 2

    needs: int = 2


class QueueDelIfEmpty(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The end of a queue that holds no message at this place of the log."""

    OP: ClassVar[str] = "queue-del-if-empty"
    SINCE: ClassVar[int] = 2

    uuid: str
    needs: int = 2


class Setting(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """What the cluster agrees on under a key (ha.core.cluster_settings), until another value comes; {} for nothing any more."""

    OP: ClassVar[str] = "setting"
    SINCE: ClassVar[int] = 4

    key: str
    value: dict[str, Any] = {}
    needs: int = 4


class RecentIds(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """What a queue's window of duplicates holds (`duplicates.Window.chunks`): ids of 16 bytes in base64, and the times, in ms
    since 1970, at which the batches were made that brought them."""

    OP: ClassVar[str] = "recent-ids"
    SINCE: ClassVar[int] = 5

    uuid: str
    ids: str
    times: list[int]
    needs: int = 5


class OriginAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The messages of a queue of another store may come to the queue `into` (uuids all), in this `drain` of that store.

    `number` is what HELD records name it by; None until a state has given it one. Again with another `into`: they come there.

    Of a route `drain` is the uuid, `queue` says the store too, `into` is "", and `source_epoch` is the highest epoch in which a
    primary of the source has given it messages: one of a lower epoch has been deposed, and may give them again. Of a drain it is
    0 until the drainer has said that all that can come has come, and 1 from then on: until then a subscription that the messages
    come to is paused."""

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
        """What an origin is known by."""
        return self.drain, self.queue


class OriginRelease(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """This drain has emptied its store for good: what is held of its origins is forgotten, and nothing more of them is taken."""

    OP: ClassVar[str] = "origin-release"
    SINCE: ClassVar[int] = 5

    drain: str
    needs: int = 5


class OriginForget(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The drained store knows that it was released: forget the drain."""

    OP: ClassVar[str] = "origin-forget"
    SINCE: ClassVar[int] = 5

    drain: str
    needs: int = 5


class RouteAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Messages are fetched from another broker, or cluster, at the URL `source`, which has no password in it.

    `kind` "queue": from its queue `key`; "exchange": from its exchange `exchange`, as many as have the routing key `key`. They go
    to the exchange `exchange` of this cluster, or to the queue of that name if there is no such exchange. `tag` is written into
    them beside what says where they have been; one that has any of `exclude` there is not taken (broker.core.hops). `mechanism`:
    of SASL, "" for the best. The same uuid again, `ending`: the route is to go, once its source knows that."""

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
        """What a route is known by: there is one of it."""
        return self.kind, self.source, self.exchange, self.key


class RouteDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The end of a route."""

    OP: ClassVar[str] = "route-del"
    SINCE: ClassVar[int] = 6

    uuid: str
    needs: int = 6


LinkKey = tuple[str, str, str, str]
"""What a link whose messages are numbered is known by: user, container, name and queue (uuid)."""


class LinkAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Messages that this `user` sends from this `container` over the link of this name to the queue `into` (a uuid) are numbered,
    and the log remembers which have come until `kept_s` seconds after the link was there last.

    `number` is what HELD records name it by; None until a state has given it one. Again with another time: that counts."""

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
        """What it is known by."""
        return self.user, self.container, self.link, self.into


class LinkForget(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """This link has not come back in time: what is remembered of it is forgotten."""

    OP: ClassVar[str] = "link-forget"
    SINCE: ClassVar[int] = 6

    user: str
    container: str
    link: str
    into: str
    needs: int = 6

    @property
    def identity(self) -> LinkKey:
        """What it is known by."""
        return self.user, self.container, self.link, self.into


class PolicyAdd(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A queue (`kind` "queue"), or an exchange ("topic"), whose name matches the pattern is made with these attributes, where
    whoever makes it asks for no others; `by_use`: such a node is made when a client attaches to it. Again with the same kind and
    pattern: these count from here on, in the place of those before."""

    OP: ClassVar[str] = "policy-add"
    SINCE: ClassVar[int] = 7

    kind: str
    pattern: str
    attributes: dict[str, Any] = {}
    by_use: bool = False
    needs: int = 7

    @property
    def identity(self) -> tuple[str, str]:
        """What it is known by."""
        return self.kind, self.pattern


class PolicyDel(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """The end of a policy. What was made with it stays as it is."""

    OP: ClassVar[str] = "policy-del"
    SINCE: ClassVar[int] = 7

    kind: str
    pattern: str
    needs: int = 7


class ExchangePassed(Command, frozen=True, kw_only=True, dict=True, rename="camel"):
    """So many messages have gone through an exchange. Of one that keeps the last of them: its routing `key`, the message as
    base64, "" for none, and when it expires and may be given out, in ms since 1970, 0 for never and at once."""

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
    """The queue has got what this binding owed it, or there was nothing that it owed."""

    OP: ClassVar[str] = "value-given"
    SINCE: ClassVar[int] = 8

    exchange: str
    queue: str
    key: str
    needs: int = 8

    @property
    def identity(self) -> Key:
        """What the binding is known by."""
        return self.exchange, self.queue, self.key


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that this version must not apply; `why` names it, and what it asks for."""

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
    """The command of a DEFINE record, for a broker that applies commands up to `version`."""
    try:
        head = _head(text)
        if head.needs > version:
            return UnknownCommand(head.op, f"{head.op!r} needs machine version {head.needs}", text)
        kind = _KINDS.get(head.op)
        if kind is None or version < kind.SINCE:
            return UnknownCommand(head.op, f"{head.op!r} is unknown", text)
        command = _READERS[head.op](text)
    except msgspec.ValidationError as error:
        return UnknownCommand("", f"{text!r:.200} is no command: {error}", text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(text, version)
    vars(command)["text"] = text
    return command


def _decode_leniently(text: bytes, version: int) -> Command | UnknownCommand:
    """What Python's JSON takes beyond the standard, NaN as the value of an argument for one, stands in stores as well."""
    try:
        fields = json.loads(text)
        kind = _KINDS[fields["op"]]
        command = msgspec.convert(fields, kind)
    except (ValueError, KeyError, TypeError) as error:
        return UnknownCommand("", f"{text!r:.200} is no command: {error}", text)
    if max(command.needs, kind.SINCE) > version:
        return UnknownCommand(kind.OP, f"{kind.OP!r} needs machine version {max(command.needs, kind.SINCE)}", text)
    vars(command)["text"] = text
    return command


Altered = TypeVar("Altered", QueueAdd, ExchangeAdd)


def altered(command: Altered, by: Alter) -> Altered:
    """The same with other arguments, and another alternate exchange, also in its text; unknown fields stay."""
    needs = max(command.needs, by.applies)
    made = msgspec.structs.replace(command, arguments=by.arguments, alternate=by.alternate, needs=needs)
    more = {"arguments": by.arguments, "alternate": by.alternate} | ({"needs": needs} if needs > 1 else {})
    vars(made)["text"] = _to_json(json.loads(command.text) | more)
    return made


def paid(bind: Bind) -> Bind:
    """The same binding when its queue has got what it was owed, also in its text; unknown fields stay."""
    made = msgspec.structs.replace(bind, owes=False)
    vars(made)["text"] = _to_json({name: value for name, value in json.loads(bind.text).items() if name != "owes"})
    return made


Numbered = TypeVar("Numbered", QueueAdd, StoreAdd, OriginAdd, LinkAdd)


def numbered(command: Numbered, number: int) -> Numbered:
    """The same with its number, also in its text; unknown fields stay."""
    if command.number == number:
        return command
    made = msgspec.structs.replace(command, number=number)
    vars(made)["text"] = _to_json(json.loads(command.text) | {"number": number})
    return made


def _to_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
