"""Requests → commands: a request to create, change or delete a queue, an exchange, a subscription or a binding becomes a command
and the log to propose it to, or it is refused with a status and a text.

Life of a request: `plan_*` reads the registry (`broker.core.nodes`) as it is in this turn, and changes nothing. The caller
proposes the command; the registry follows when it is committed. Until then the command is under way. It counts where an exchange
is to be an alternate exchange, or to be deleted, and for a change of the same queue, exchange or policy, which starts from it.
What is being deleted is bound no more: a binding without its queue or exchange would stay in the cluster's log for ever.

Invariants: nothing in a user's request is ignored: what this broker does not support is refused; a command that needs a machine
version is planned only if the log has it; every planned command has a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import structs

from broker.core import limits, passage, policies, subscriptions
from broker.core.commands import (
    EXACT_SINCE,
    PASSAGE_SINCE,
    SUBSCRIPTIONS_SINCE,
    TIMES_SINCE,
    Alter,
    Bind,
    Command,
    ExchangeAdd,
    ExchangeDel,
    PolicyAdd,
    PolicyDel,
    QueueAdd,
    QueueDel,
    QueueDelIfEmpty,
    Unbind,
    same_text,
    unstorable,
)
from broker.core.dynamic import LifetimePolicy
from broker.core.exchange import PATHS, fault_of
from broker.core.interest import OWN_QUEUES, fault_of_paths
from broker.core.nodes import (
    AUTO_DELETE_TIMEOUT,
    CLUSTER,
    DELIVERY_LIMIT,
    LOCAL,
    MESSAGE_TTL,
    RETRY_MAX,
    RETRY_MIN,
    ExchangeNode,
    Nodes,
    QueueNode,
    Refused,
)
from broker.core.queues import arguments as queue_arguments
from broker.core.subscriptions import Terms

LEVELS = ("all", "configuration", "none")
KINDS = ("direct", "topic", "fanout", "headers")
_ATTRIBUTES = frozenset({"durable", "replicate", "autoDelete", "exclusive", "arguments", "alternateExchange", "subscription"})
_OF_POLICIES = {
    "queue": frozenset({"durable", "replicate", "autoDelete", "exclusive", "arguments", "alternateExchange", "byUse"}),
    "topic": frozenset({"durable", "replicate", "arguments", "alternateExchange", "exchangeType", "byUse"}),
}
_TIMED = (DELIVERY_LIMIT, MESSAGE_TTL, RETRY_MIN, RETRY_MAX)
KNOWN_ARGUMENTS = frozenset(
    {
        *("qpid.replicate", AUTO_DELETE_TIMEOUT),
        *_TIMED,
        *queue_arguments.NAMES,
    }
)


ALTERABLE = frozenset({*_TIMED, *queue_arguments.ALTERABLE})
"""Arguments that an existing queue may get or lose. All other arguments with an effect decide its kind."""
FOR_ANY = ALTERABLE | {queue_arguments.POLICY, *queue_arguments.CONSUMER_MS}
"""Arguments that any queue may have: queues of subscriptions and of routes get these arguments of a policy."""


def arguments_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a request asks for. Refused when they are not a map."""
    found = body.get("arguments") or {}
    if not isinstance(found, dict):
        raise Refused(400, "`arguments` must be a map of names to values")
    return dict(found)


def _level_of(nodes: Nodes, wanted: str | None) -> str:
    """The replication level that an object gets: as wanted, else the default; Refused for an unknown word."""
    level = wanted or (nodes.default_level if nodes.clustered else "none")
    if level not in LEVELS:
        raise Refused(400, f"{level!r} is not a replication level: use all, configuration or none")
    return level


def _log_for(nodes: Nodes, level: str) -> str:
    """The log that holds the definition of an object of this level."""
    return CLUSTER if nodes.clustered and level != "none" else LOCAL


def policy_for(nodes: Nodes, kind: str, name: str) -> PolicyAdd | None:
    """The policy by which a "queue" or an "exchange" of this name would be made."""
    return policies.best(nodes.policies(), policies.POLICY_OF[kind], name)


def with_policy(nodes: Nodes, kind: str, name: str, asked: Mapping[str, Any], *, own: bool = False) -> dict[str, Any]:
    """The attributes of a new "queue" or "exchange", from the requested ones and the policy. `own`: it is created for a client's
    links, not by its name. So is the queue of a route, which requests it by its name."""
    attributes = dict(asked)
    if attributes.pop(policies.AS_IS, False):
        return attributes
    policy = policy_for(nodes, kind, name)
    if policy is None:
        return attributes
    own = own or (kind == "queue" and name.startswith(OWN_QUEUES))
    return policies.merged(policy, attributes, FOR_ANY if own else None)


def plan_queue(
    nodes: Nodes, name: str, uuid: str, asked: dict[str, Any], owner: str = "", *, own: bool = False
) -> tuple[str, Command]:
    """(log, command) that creates a queue of this owner's; Refused when it exists or its attributes make no sense. `own`: see
    `with_policy`."""
    attributes = with_policy(nodes, "queue", name, asked, own=own)
    try:
        log, command = _plan_queue(nodes, name, uuid, attributes, owner)
        if not asked.get(policies.AS_IS):
            _check_reach(nodes, f"queue {name!r}", "queue", log, command.alternate)
            _check_names(name, command.arguments)
        return log, command
    except Refused as refusal:
        raise _with_blame(nodes, "queue", name, attributes != asked, refusal) from None


def _with_blame(nodes: Nodes, kind: str, name: str, differs: bool, refusal: Refused) -> Refused:
    """The same, with the name of the policy that may be the cause of the refusal."""
    policy = policy_for(nodes, kind, name) if differs else None
    if policy is None:
        return refusal
    return Refused(
        refusal.status, f"{refusal.text}; the {policy.kind} policy {policy.pattern!r} adds to the arguments of this request"
    )


def _plan_queue(nodes: Nodes, name: str, uuid: str, attributes: dict[str, Any], owner: str) -> tuple[str, QueueAdd]:
    _check_name("queue", name)
    if name in nodes.queues:
        raise Refused(409, f"a queue named {name!r} exists already")
    if len(nodes.queues) >= limits.MAX_QUEUES:
        raise Refused(409, f"this broker has {len(nodes.queues)} queues, its limit; delete some first")
    for attribute in attributes.keys() - _ATTRIBUTES:
        raise Refused(400, f"queue {name!r}: a queue has no {attribute!r} (it has {', '.join(sorted(_ATTRIBUTES))})")
    arguments = arguments_of(attributes)
    _check_arguments(name, arguments)
    _check_alternate(name, str(attributes.get("alternateExchange") or ""), arguments)
    level = _level_of(nodes, attributes.get("replicate") or arguments.get("qpid.replicate"))
    if not nodes.clustered and level == "configuration":
        level = "all"
    log, subscription = _log_for(nodes, level), _subscription_of(name, attributes)
    needs = max(_version_of(arguments), SUBSCRIPTIONS_SINCE if subscription else 1)
    _check_version(nodes, log, needs, f"queue {name!r}")
    command = QueueAdd(
        needs=needs,
        uuid=uuid,
        name=name,
        level=level,
        durable=bool(attributes.get("durable", False)),
        auto_delete=bool(attributes.get("autoDelete", False)) or bool(arguments.get(AUTO_DELETE_TIMEOUT)),
        exclusive=bool(attributes.get("exclusive", False)),
        arguments=arguments,
        alternate=_alternate(nodes, attributes),
        owner=owner,
        subscription=subscription,
    )
    return log, command


def plan_subscription(
    nodes: Nodes, terms: Terms, uuid: str, binding: Bind, *, keep_s: int, owner: str, instead_of: QueueNode | None = None
) -> tuple[str, list[Command]]:
    """(log, commands of one batch) that create the queue of a subscription and its binding to an exchange, and replace a queue of
    this name. `keep_s`: seconds for which it stays when it is unused, 0: for ever. A lasting queue is in the log of the exchange.
    Refused."""
    exchange, name = nodes.exchange_by_uuid(binding.exchange), terms.queue
    log = _subscription_log(nodes, exchange, terms)
    if instead_of is None:
        _check_name("queue of a subscription", name)
        if len(nodes.queues) >= limits.MAX_QUEUES:
            raise Refused(409, f"this broker has {len(nodes.queues)} queues, its limit; delete some first")
    elif instead_of.log != log:
        raise Refused(409, f"subscription {terms.name!r} is at an exchange of another level; unsubscribe first")
    if len(exchange.routing) >= limits.MAX_BINDINGS_PER_EXCHANGE:
        raise Refused(409, f"exchange {exchange.name!r} has {limits.MAX_BINDINGS_PER_EXCHANGE} bindings, its limit")
    if lacks := nodes.lacks(log, SUBSCRIPTIONS_SINCE):
        raise Refused(501, f"a subscription that lasts {lacks}")
    attributes = with_policy(nodes, "queue", name, {}, own=True)
    arguments = arguments_of(attributes) | ({AUTO_DELETE_TIMEOUT: keep_s} if keep_s else {})
    _check_arguments(name, arguments)
    made = QueueAdd(
        needs=max(SUBSCRIPTIONS_SINCE, _version_of(arguments)),
        uuid=uuid,
        name=name,
        level="all" if log == CLUSTER else "none",
        durable=terms.lasting,
        auto_delete=bool(keep_s) or not terms.lasting,
        exclusive=not terms.shared,
        arguments=arguments,
        alternate=_alternate(nodes, attributes),
        owner=owner,
        subscription=terms.to_dict(),
    )
    gone: list[Command] = [] if instead_of is None else [QueueDel(uuid=instead_of.uuid)]
    return log, [*gone, made, binding]


def plan_dynamic(nodes: Nodes, kind: str, name: str, uuid: str, policy: LifetimePolicy, owner: str) -> tuple[str, Command]:
    """(log, command) that creates a dynamic node, a "queue" or an "exchange", of this broker alone; Refused."""
    if kind == "queue":
        log, queue = plan_queue(nodes, name, uuid, {"replicate": "none"}, owner, own=True)
        return log, structs.replace(queue, lifetime=str(policy))
    log, exchange = plan_exchange(nodes, name, uuid, {"exchangeType": "topic", "replicate": "none", policies.AS_IS: True})
    return log, structs.replace(exchange, lifetime=str(policy))


def plan_exchange(nodes: Nodes, name: str, uuid: str, asked: dict[str, Any]) -> tuple[str, Command]:
    """(log, command) that creates an exchange."""
    attributes = with_policy(nodes, "exchange", name, asked)
    _check_name("exchange", name)
    kind = attributes.get("exchangeType", "direct")
    if kind not in KINDS:
        raise Refused(400, f"{kind!r} is not an exchange type: use direct, topic, fanout or headers")
    if name in nodes.exchanges:
        raise Refused(409, f"an exchange named {name!r} exists already")
    if len(nodes.exchanges) >= limits.MAX_EXCHANGES:
        raise Refused(409, f"this broker has {len(nodes.exchanges)} exchanges, its limit; delete some first")
    arguments = arguments_of(attributes)
    needs = _needs_of_exchange(f"exchange {name!r}", arguments)
    level = _level_of(nodes, attributes.get("replicate") or arguments.get("qpid.replicate"))
    log = _log_for(nodes, level)
    _check_version(nodes, log, needs, f"exchange {name!r}")
    if arguments.get(passage.INITIAL_VALUE):
        _check_keeping(nodes, name)
    command = ExchangeAdd(
        needs=needs,
        uuid=uuid,
        name=name,
        kind=kind,
        level=level,
        durable=bool(attributes.get("durable", False)),
        arguments=arguments,
        alternate=_alternate(nodes, attributes),
    )
    if not asked.get(policies.AS_IS):
        _check_reach(nodes, f"exchange {name!r}", "exchange", log, command.alternate)
    return log, command


def _needs_of_exchange(what: str, arguments: dict[str, Any]) -> int:
    """The machine version that an exchange with these arguments needs; Refused when there is none with them."""
    _check_known(what, arguments, frozenset({"qpid.replicate", *passage.NAMES}), {})
    fault = passage.fault_of(arguments)
    if fault:
        raise Refused(400, f"{what}: {fault}")
    return PASSAGE_SINCE if any(map(arguments.get, passage.NAMES)) else 1


def _check_keeping(nodes: Nodes, name: str) -> None:
    if sum(each.keeps for each in nodes.exchanges.values()) >= limits.MAX_KEEPING_EXCHANGES:
        most = f"{limits.MAX_KEEPING_EXCHANGES} exchanges of this broker keep their last message, its limit"
        raise Refused(409, f"exchange {name!r}: {most}; delete some first, or make it without {passage.INITIAL_VALUE}")


def plan_alteration(nodes: Nodes, kind: str, name: str, attributes: dict[str, Any]) -> tuple[str, Command]:
    """(log, command) that changes attributes of a queue ("queue") or an exchange: arguments by name, None to remove one, and
    `alternateExchange`, "" for none. Other attributes do not change. Refused."""
    node: QueueNode | ExchangeNode | None = (nodes.queues if kind == "queue" else nodes.exchanges).get(name)
    if node is None:
        raise Refused(404, f"there is no {kind} named {name!r}")
    may = frozenset({"alternateExchange", "arguments"} if kind == "queue" else {"alternateExchange"})
    for attribute in attributes.keys() - may:
        raise Refused(400, f"{kind} {name!r}: {attribute!r} cannot be changed ({', '.join(sorted(may))} can)")
    if isinstance(node, ExchangeNode) and node.built_in:
        raise Refused(409, f"exchange {name!r} is built in and cannot be changed")
    stands = _last_alteration(nodes, node.definition)
    alternate = _alternate(nodes, attributes) if "alternateExchange" in attributes else stands.alternate
    if isinstance(node, QueueNode):
        arguments = _altered_arguments(name, stands, arguments_of(attributes))
        _check_alternate(name, alternate, arguments)
        applies = max(stands.applies, _version_of(arguments))
    else:
        arguments, applies = stands.arguments, stands.applies
    if alternate == name and kind == "exchange":
        raise Refused(400, f"exchange {name!r} cannot be its own alternate exchange")
    if "alternateExchange" in attributes:
        _check_reach(nodes, f"{kind} {name!r}", kind, node.log, alternate)
    _check_version(nodes, node.log, max(Alter.SINCE, applies), f"{kind} {name!r}")
    return node.log, Alter(uuid=node.uuid, arguments=arguments, alternate=alternate, applies=applies)


def _last_alteration(nodes: Nodes, made: QueueAdd | ExchangeAdd) -> Alter:
    """The last alteration of a queue or an exchange that is under way. If there is none: its definition, as an alteration."""
    found = Alter(uuid=made.uuid, arguments=made.arguments, alternate=made.alternate, applies=made.needs)
    for command in nodes.under_way():
        if isinstance(command, Alter) and command.uuid == made.uuid:
            found = command
    return found


def plan_policy(nodes: Nodes, kind: str, pattern: str, body: Mapping[str, Any], *, there: bool) -> tuple[str, Command]:
    """(log, command) that creates a policy, or changes the existing one (`there`): attributes that are not named do not change;
    arguments are named one by one, None to remove one. Refused."""
    what = f"{kind} policy {pattern!r}"
    _check_name(f"{kind} policy", pattern)
    log = CLUSTER if nodes.clustered else LOCAL
    stands = _policy_to_be(nodes, log, kind, pattern)
    if (stands is not None) is not there:
        raise Refused(404, f"there is no {what}") if there else Refused(409, f"a {what} exists already: update it")
    for attribute in body.keys() - _OF_POLICIES[kind]:
        raise Refused(400, f"{what}: it has no {attribute!r} (it has {', '.join(sorted(_OF_POLICIES[kind]))})")
    before = {} if stands is None else stands.attributes
    changed = {**before.get("arguments", {}), **arguments_of(body)}
    attributes: dict[str, Any] = {**before, **body}
    attributes["arguments"] = {name: value for name, value in changed.items() if value is not None}
    by_use = bool(attributes.pop("byUse", True if stands is None else stands.by_use))
    attributes = {name: value for name, value in attributes.items() if value not in (None, "", False, {})}
    if "replicate" in attributes:
        _level_of(nodes, attributes["replicate"])
    needs = _needs_of_policy(nodes, what, log, kind, attributes)
    for attribute, value in attributes.items():
        _check_storable(f"{what}: {attribute!r}", value)
    _check_version(nodes, log, needs, what)
    return log, PolicyAdd(kind=kind, pattern=pattern, attributes=attributes, by_use=by_use, needs=needs)


def _policy_to_be(nodes: Nodes, log: str, kind: str, pattern: str) -> PolicyAdd | None:
    """The policy for that pattern that this log will have after the commands that are under way."""
    stands = nodes.policy_in(log, kind, pattern)
    for command in nodes.under_way():
        if isinstance(command, PolicyAdd | PolicyDel) and (command.kind, command.pattern) == (kind, pattern):
            stands = command if isinstance(command, PolicyAdd) else None
    return stands


def _needs_of_policy(nodes: Nodes, what: str, log: str, kind: str, attributes: dict[str, Any]) -> int:
    """The machine version that these attributes of a policy need; Refused when nothing could be made with them."""
    arguments = attributes.get("arguments", {})
    alternate = _alternate(nodes, attributes)
    _check_reach(nodes, what, "policy", log, alternate)
    if kind == "topic":
        needs = _needs_of_exchange(what, arguments)
        if attributes.get("exchangeType", "topic") not in KINDS:
            raise Refused(400, f"{what}: {attributes['exchangeType']!r} is not an exchange type: use {', '.join(KINDS)}")
        return max(PolicyAdd.SINCE, needs)
    try:
        _check_arguments("that it is for", arguments)
        _check_names("that it is for", arguments)
        _check_alternate("that it is for", alternate, arguments)
    except Refused as refusal:
        raise Refused(refusal.status, f"{what}: {refusal.text}") from None
    return max(PolicyAdd.SINCE, _version_of(arguments))


def plan_policy_removal(nodes: Nodes, kind: str, pattern: str) -> tuple[str, Command]:
    """(log, command) that deletes a policy; Refused."""
    log = next((log for log in (CLUSTER, LOCAL) if nodes.policy_in(log, kind, pattern) is not None), "")
    if not log:
        raise Refused(404, f"there is no {kind} policy {pattern!r}")
    return log, PolicyDel(kind=kind, pattern=pattern)


def plan_binding(nodes: Nodes, exchange: str, queue: str, key: str, arguments: dict[str, Any]) -> tuple[str, Command]:
    """(log, command) that binds a queue to an exchange; Refused."""
    found, bound = _ends(nodes, exchange, queue)
    there = nodes.log_of_binding((found.uuid, bound.uuid, key)) is not None
    if len(found.routing) >= limits.MAX_BINDINGS_PER_EXCHANGE and not there:
        raise Refused(409, f"exchange {exchange!r} has {limits.MAX_BINDINGS_PER_EXCHANGE} bindings, its limit; unbind some first")
    others = {name: value for name, value in arguments.items() if name != PATHS}
    fault = fault_of_paths(queue, arguments[PATHS]) if PATHS in arguments else ""
    fault = fault or fault_of(found.definition.kind, key, others)
    if fault:
        raise Refused(400, f"queue {queue!r} cannot be bound to exchange {exchange!r}: {fault}")
    for name, value in arguments.items():
        _check_storable(f"binding of queue {queue!r}: argument {name!r}", {name: value})
    return _binding_log(nodes, found, bound), binding_of(nodes, found, bound.uuid, key, arguments)


def binding_of(nodes: Nodes, exchange: ExchangeNode, queue: str, key: str, arguments: dict[str, Any]) -> Bind:
    """The command that binds the queue of this identity. An exchange that keeps its last message owes it to a new binding.
    Refused."""
    if nodes.is_going(exchange.uuid):
        raise Refused(404, f"exchange {exchange.name!r} is being deleted")
    if nodes.is_going(queue):
        raise Refused(404, "this queue is being deleted")
    log, stands = nodes.binding((exchange.uuid, queue, key)) or ("", None)
    owes = exchange.keeps and stands is None
    needs = PASSAGE_SINCE if owes else 1
    version = nodes.version_of(log or (CLUSTER if nodes.clustered else LOCAL))
    if version >= EXACT_SINCE and ((stands is not None and stands.owes) or _has_numbers(arguments)):
        needs = EXACT_SINCE  # also if none stands: another one may be under way
    if stands is not None and stands.arguments == arguments and not same_text(stands.arguments, arguments):
        needs = EXACT_SINCE
        if lacks := nodes.lacks(log, needs):
            raise Refused(409, f"this change of a binding {lacks}; unbind it first")
    return Bind(needs=needs, exchange=exchange.uuid, queue=queue, key=key, arguments=arguments, owes=owes)


def _has_numbers(value: Any) -> bool:
    """Whether something in this value of a definition is equal for Python to a value of another type."""
    if isinstance(value, dict):
        return any(map(_has_numbers, value.values()))
    return any(map(_has_numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


def plan_unbinding(nodes: Nodes, exchange: str, queue: str, key: str) -> tuple[str, Command]:
    """(log, command) that takes a binding away."""
    found, bound = _ends(nodes, exchange, queue)
    log = nodes.log_of_binding((found.uuid, bound.uuid, key))
    if log is not None:
        return log, Unbind(exchange=found.uuid, queue=bound.uuid, key=key)
    raise Refused(404, f"queue {queue!r} is not bound to exchange {exchange!r} with key {key!r}")


def _binding_log(nodes: Nodes, exchange: ExchangeNode, queue: QueueNode) -> str:
    return CLUSTER if nodes.clustered and exchange.replicated and queue.replicated else LOCAL


def _subscription_log(nodes: Nodes, exchange: ExchangeNode, terms: Terms) -> str:
    return CLUSTER if nodes.clustered and exchange.replicated and terms.lasting else LOCAL


def _ends(nodes: Nodes, exchange: str, queue: str) -> tuple[ExchangeNode, QueueNode]:
    if exchange not in nodes.exchanges:
        raise Refused(404, f"there is no exchange named {exchange!r}")
    if queue not in nodes.queues:
        raise Refused(404, f"there is no queue named {queue!r}")
    if exchange == "":
        raise Refused(409, "every queue is bound to the default exchange by its name, and by nothing else")
    return nodes.exchanges[exchange], nodes.queues[queue]


def plan_queue_removal(nodes: Nodes, name: str, *, if_empty: bool, if_unused: bool, consumers: int) -> tuple[str, Command]:
    """(log, command) that deletes a queue; `consumers` is how many it has now."""
    node = nodes.queues.get(name)
    if node is None:
        raise Refused(404, f"there is no queue named {name!r}")
    if if_empty and node.depth:
        raise Refused(409, f"queue {name!r} holds {node.depth} messages; empty it first, or use --force")
    if if_unused and consumers:
        raise Refused(409, f"queue {name!r} has {consumers} consumers; stop them first, or use --force")
    if if_empty and nodes.version_of(node.log) >= QueueDelIfEmpty.SINCE:
        return node.log, QueueDelIfEmpty(uuid=node.uuid)
    return node.log, QueueDel(uuid=node.uuid)


def plan_exchange_removal(nodes: Nodes, name: str) -> tuple[str, Command]:
    """(log, command) that deletes an exchange."""
    node = nodes.exchanges.get(name)
    if node is None:
        raise Refused(404, f"there is no exchange named {name!r}")
    if node.built_in:
        raise Refused(409, f"exchange {name!r} is built in and cannot be deleted")
    user = next((queue.name for queue in nodes.queues.values() if queue.definition.alternate == name), None)
    if user is not None:
        raise Refused(409, f"exchange {name!r} is the alternate exchange of queue {user!r}; delete that first")
    if any(_names_as_alternate(command, name) for command in nodes.under_way()):
        text = f"exchange {name!r} is about to be an alternate exchange: another request that is not answered yet names it"
        raise Refused(409, text)
    others = (other.name for other in nodes.exchanges.values() if other is not node and other.definition.alternate == name)
    user = next(others, None)
    if user is not None:
        raise Refused(409, f"exchange {name!r} is the alternate exchange of exchange {user!r}; delete or update that first")
    policy = next((each for each in nodes.policies() if each.attributes.get("alternateExchange") == name), None)
    if policy is not None:
        text = f"the alternate exchange of the {policy.kind} policy {policy.pattern!r}; delete or update that first"
        raise Refused(409, f"exchange {name!r} is {text}")
    return node.log, ExchangeDel(uuid=node.uuid)


def _alternate(nodes: Nodes, attributes: dict[str, Any]) -> str:
    alternate = str(attributes.get("alternateExchange") or "")
    found = nodes.exchanges.get(alternate)
    if alternate and (found is None or ExchangeDel(uuid=found.uuid) in nodes.under_way()):
        raise Refused(404, f"there is no exchange named {alternate!r} to be the alternate exchange")
    if found is not None and found.definition.lifetime:
        text = f"exchange {alternate!r} is deleted with the link that made it, so it cannot be an alternate exchange"
        raise Refused(409, text)
    return alternate


def _check_version(nodes: Nodes, log: str, needs: int, what: str) -> None:
    """Refused unless a command about `what` that needs this machine version may be proposed to the log now."""
    if lacks := nodes.lacks(log, needs):
        raise Refused(409, f"{what}: this request {lacks}")


def _check_reach(nodes: Nodes, what: str, kind: str, log: str, alternate: str) -> None:
    """Refused, when something in the cluster's log is to have an alternate exchange that only this broker has: the next primary
    would have nowhere to send its messages to. What a drain creates as it is on the source may have one, as it had there."""
    if log == CLUSTER and alternate and not nodes.exchanges[alternate].replicated:
        where = f"exchange {alternate!r} is on this broker only, and the {kind} is on all brokers"
        raise Refused(409, f"{what}: {where}; the alternate exchange of such a {kind} must be replicated, too")


def _names_as_alternate(command: Command, exchange: str) -> bool:
    """Whether this command makes an exchange of this name the alternate exchange of something."""
    match command:
        case QueueAdd() | ExchangeAdd() | Alter():
            return command.alternate == exchange
        case PolicyAdd():
            return command.attributes.get("alternateExchange") == exchange
        case _:
            return False


def _check_name(what: str, name: str) -> None:
    if not name:
        raise Refused(400, f"a {what} needs a name")
    if len(name.encode()) > limits.MAX_NAME_BYTES:
        raise Refused(400, f"a {what}'s name may have {limits.MAX_NAME_BYTES} bytes, this one has {len(name.encode())}")
    if name.startswith("$") or any(ord(letter) < 32 for letter in name):
        raise Refused(400, f"{name!r} cannot name a {what}: names start with no '$' and hold no control characters")


def _altered_arguments(name: str, stands: Alter, changes: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a queue after these changes of what stands. Arguments that are not in force, because an older release
    created the queue, are removed: otherwise they would be in force from now on. Refused."""
    for key in changes:
        if isinstance(key, str) and key.startswith(("qpid.", "x-")) and key not in ALTERABLE:
            known = ", ".join(sorted(ALTERABLE))
            raise Refused(409, f"queue {name!r}: {key!r} cannot be changed while the queue is there (what can: {known})")
    asked = queue_arguments.in_force(stands.arguments, stands.applies)
    kept = {key: value for key, value in stands.arguments.items() if key in asked or _counts(key, stands.applies)}
    arguments = {key: value for key, value in (kept | changes).items() if value is not None}
    _check_arguments(name, arguments)
    return arguments


def _counts(key: str, needs: int) -> bool:
    """Whether this argument, which is not among `queue_arguments`, is in force on a queue that needs this version, or a note."""
    if key in _TIMED:
        return needs >= TIMES_SINCE
    if key == AUTO_DELETE_TIMEOUT:
        return needs > 1
    return key == "qpid.replicate" or not key.startswith(("qpid.", "x-"))


def _check_alternate(name: str, alternate: str, arguments: dict[str, Any]) -> None:
    if alternate and queue_arguments.policy_of(arguments) != queue_arguments.REJECT:
        text = "what leaves a ring goes to no alternate exchange: make the queue without one"
        raise Refused(501, f"queue {name!r}: {text}")


def _subscription_of(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """The terms of the subscription that a queue is to stand for; {} for none. Refused."""
    given = attributes.get("subscription")
    try:
        return subscriptions.moved(name, given) if given else {}
    except ValueError as error:
        raise Refused(400, f"queue {name!r}: {error}") from None


def _version_of(arguments: dict[str, Any]) -> int:
    """The machine version that a queue with these arguments needs. The first would delete it with its last consumer at once, and
    those before `TIMES_SINCE` would keep messages that are to leave."""
    needs = {AUTO_DELETE_TIMEOUT: 2} | dict.fromkeys(_TIMED, TIMES_SINCE)
    version = queue_arguments.version_of(arguments)
    return max(version, *(since if arguments.get(name) else 1 for name, since in needs.items()))


def _check_known(what: str, arguments: dict[str, Any], known: frozenset[str], instead: Mapping[str, str]) -> None:
    """Arguments with an effect begin with `qpid.` or `x-`; all others are notes of the user who created the object. `instead`:
    what to do instead of those of another broker."""
    for key, value in arguments.items():
        if not isinstance(key, str):
            raise Refused(400, f"{what}: the names of arguments must be texts, and {key!r} is not one")
        _check_storable(f"{what}: argument {key!r}", value)
        if key.startswith(("qpid.", "x-")) and key not in known:
            near = " or ".join(map(repr, _near(key.lower(), known)))
            hint = f"{instead[key]}; " if key in instead else f"did you mean {near}? " if near else ""
            text = f"this broker does not have {key!r} ({hint}docs/reference/queue-arguments.md has all arguments)"
            raise Refused(501, f"{what}: {text}")


def _near(key: str, known: frozenset[str]) -> list[str]:
    """The known arguments that this one may mean. None is like a very long one, for which the search would take long."""
    return get_close_matches(key, sorted(known), n=2, cutoff=0.75) if len(key) <= limits.MAX_NAME_BYTES else []


def _check_storable(what: str, value: Any) -> None:
    fault = unstorable(value)
    if fault:
        raise Refused(400, f"{what}: {fault}")


def _check_names(name: str, arguments: dict[str, Any]) -> None:
    """Refused, when two of these are names of one argument. Queues that an earlier release created may have them, and so may what
    a drain creates as it is on the source."""
    fault = queue_arguments.repeated(arguments)
    if fault:
        raise Refused(400, f"queue {name!r}: {fault}")


def _check_arguments(name: str, arguments: dict[str, Any]) -> None:
    shares = {key for key in arguments if isinstance(key, str) and queue_arguments.is_known(key)}
    _check_known(f"queue {name!r}", arguments, KNOWN_ARGUMENTS | shares, queue_arguments.INSTEAD)
    try:
        fault = queue_arguments.fault_of(arguments)
    except queue_arguments.Unknown as error:
        raise Refused(501, f"queue {name!r}: {error}") from None
    if fault:
        raise Refused(400, f"queue {name!r}: {fault}")
    for key, what, most in (
        (DELIVERY_LIMIT, "a number of failed deliveries", limits.MAX_DELIVERY_LIMIT),
        *((key, "a number of milliseconds", limits.MAX_MESSAGE_TTL_MS) for key in (MESSAGE_TTL, RETRY_MIN, RETRY_MAX)),
    ):
        value = arguments.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise Refused(400, f"queue {name!r}: {key} must be {what} from 1 to {most}, not {value!r}")
    if RETRY_MAX in arguments and arguments[RETRY_MAX] < arguments.get(RETRY_MIN, limits.MAX_MESSAGE_TTL_MS + 1):
        raise Refused(400, f"queue {name!r}: {RETRY_MAX} is less than {RETRY_MIN}, or is there without it")
    time_s, most_s = arguments.get(AUTO_DELETE_TIMEOUT, 0), limits.MAX_AUTO_DELETE_S
    if not isinstance(time_s, int) or isinstance(time_s, bool) or not 0 <= time_s <= most_s:
        text = f"{AUTO_DELETE_TIMEOUT} must be a whole number of seconds from 0 (no time) to {most_s}, not {time_s!r}"
        raise Refused(400, f"queue {name!r}: {text}")
