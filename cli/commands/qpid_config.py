"""`qpid-config`: lists, creates and deletes queues, exchanges and bindings; purges, moves and reroutes messages.

The command line is that of Apache Qpid's tool: words for the action (`add queue NAME`), and options anywhere between
them. Words and options become one management request. The broker decides whether it can carry it out. For a replicated
object, the answer comes when a majority of the cluster has the change.
"""

from __future__ import annotations

import fnmatch
import shlex
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from broker.core.acl import grammar
from broker.core.acl.lookups import LIMITED, LOOKUPS
from broker.core.acl.rules import Acl, Decision
from broker.core.sasl import NOBODY
from broker.options import nearest
from cli import endings, options
from cli.output import Column, say, show_json, show_table, shown, text, warn
from cli.sizes import Bytes

NAME = "qpid-config"
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")
_TYPES = ("broker", "queue", "exchange", "binding", "connection", "subscription", "ha", "history", "acl", "drain", "route")
_POLICIES = ("QueuePolicy", "TopicPolicy")
_REPLICATED = ("all", "configuration")
_MATCHES = ("all", "any")
_LARGEST = (1 << 63) - 1
"""The largest signed number of AMQP."""

_ARGUMENTS = {
    "max_queue_size": ("qpid.max_size", int),
    "max_queue_count": ("qpid.max_count", int),
    "limit_policy": ("qpid.policy_type", str),
    "lvq_key": ("qpid.last_value_queue_key", str),
    "flow_stop_size": ("qpid.flow_stop_size", int),
    "flow_resume_size": ("qpid.flow_resume_size", int),
    "flow_stop_count": ("qpid.flow_stop_count", int),
    "flow_resume_count": ("qpid.flow_resume_count", int),
    "group_header": ("qpid.group_header_key", str),
    "shared_groups": ("qpid.shared_msg_group", int),
    "sequence": ("qpid.msg_sequence", int),
    "ive": ("qpid.ive", int),
}
"""The argument for each option, with qpidd's name. A broker that does not know an argument refuses it by this name."""

_FLAGS = ("qpid.shared_msg_group", "qpid.msg_sequence", "qpid.ive")
"""The arguments whose option takes no value."""

_CHANGES = (*_ARGUMENTS, "arguments", "replicate", "durable", "alternate_exchange", "made_only")
"""The options that change something at an update, or that the broker refuses to change."""

Ask = Callable[..., Coroutine[Any, Any, dict[str, Any]]]
Items = Callable[..., Coroutine[Any, Any, list[dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Task:
    """The words without the command, and the options by their names."""

    ask: Ask
    items: Items
    """All objects of a type, or those with a name."""
    words: tuple[str, ...]
    options: dict[str, Any]
    broker: str
    """The address of the broker that is asked."""


def _argument(value: str) -> tuple[str, Any]:
    """`N=V`: V as a number if it is one. `N` alone means N=1."""
    name, equals, given = value.partition("=")
    if not name:
        raise click.UsageError(f"--argument takes NAME=VALUE, not {value!r}")
    return name, (int(given) if given.removeprefix("-").isdecimal() else given) if equals else 1


def _flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options, in groups for the reader."""
    size, once = {"metavar": "BYTES", "type": Bytes(0)}, {"metavar": "N", "type": click.IntRange(0, _LARGEST)}
    table: Sequence[tuple[tuple[str, ...], dict[str, Any]]] = (
        (("-r", "--recursive"), {"is_flag": True, "help": "Also show the bindings."}),
        (
            ("--replicate",),
            {"metavar": "LEVEL", "help": "Replication level: none, configuration (definition only) or all (messages too)."},
        ),
        (("--durable",), {"is_flag": True, "help": "Accepted for old scripts: every queue survives a restart."}),
        (("--alternate-exchange",), {"metavar": "NAME", "help": "Exchange that gets dead letters."}),
        (("--argument", "arguments"), {"metavar": "N=V", "multiple": True, "help": "Another argument. May be repeated."}),
        (("--max-queue-size",), size | {"help": "Maximum bytes on the queue."}),
        (("--max-queue-count",), once | {"help": "Maximum number of messages on the queue."}),
        (("--limit-policy",), {"metavar": "POLICY", "help": "What a full queue does: none, reject, ring or ring-strict."}),
        (("--lvq-key",), {"metavar": "KEY", "help": "Last value queue: keep the last message for each value of this property."}),
        (("--flow-stop-size",), size | {"help": "Stop producers at this many bytes."}),
        (("--flow-resume-size",), size | {"help": "Let producers go on below this many bytes."}),
        (("--flow-stop-count",), once | {"help": "Stop producers at this many messages."}),
        (("--flow-resume-count",), once | {"help": "Let producers go on below this many messages."}),
        (("--group-header",), {"metavar": "KEY", "help": "Group messages by this property."}),
        (("--shared-groups",), {"is_flag": True, "help": "Several consumers may share a group."}),
        (("--sequence",), {"is_flag": True, "help": "The exchange numbers its messages."}),
        (("--ive",), {"is_flag": True, "help": "The exchange gives its last message to new bindings."}),
        (("--start-replica",), {"metavar": "URL", "help": "Refused: in a cluster every broker has the queue."}),
        (
            ("--force",),
            {"is_flag": True, "help": "del queue: even if it has messages or consumers. shutdown: even if no majority is left."},
        ),
        (("--force-if-not-empty",), {"is_flag": True, "help": "del queue: even if it has messages."}),
        (("--force-if-used",), {"is_flag": True, "help": "del queue: even if it has consumers."}),
        (
            ("--count",),
            {"metavar": "N", "type": click.IntRange(1, _LARGEST), "help": "purge, move, reroute: maximum number of messages."},
        ),
        (
            ("--filter", "selector"),
            {"metavar": "SELECTOR", "help": "purge, move, reroute: only messages that match this selector."},
        ),
        (
            ("--made-only",),
            {"is_flag": True, "help": "add QueuePolicy, TopicPolicy: a client that uses a matching name does not create it."},
        ),
        (
            ("--show-property", "properties"),
            {"metavar": "P", "multiple": True, "help": "list: show this property; may be repeated."},
        ),
    )
    for names, settings in reversed(table):
        function = click.option(*names, **settings)(function)
    return function


@click.command(context_settings=options.CONTEXT)
@click.argument("words", nargs=-1)
@_flags
@options.ha_admin_option
@options.connection_options
@options.version_option(NAME)
def command(words: tuple[str, ...], ha_admin: bool, form: str, **given: Any) -> None:
    """List, create and delete queues, exchanges, bindings and policies.

    \b
    qpid-config [OPTIONS]
        an overview
    qpid-config [OPTIONS] exchanges|queues [FILTER]
        a list; -r with bindings; FILTER with *, ? and [...]
    qpid-config [OPTIONS] add exchange TYPE NAME
        TYPE: direct fanout topic headers
    qpid-config [OPTIONS] update exchange|queue NAME
        change limits, thresholds, times or alternate exchange
    qpid-config [OPTIONS] del exchange NAME
    qpid-config [OPTIONS] add queue NAME
    qpid-config [OPTIONS] del queue NAME
    qpid-config [OPTIONS] bind EXCHANGE QUEUE [KEY]
        direct, topic, fanout
    qpid-config [OPTIONS] bind EXCHANGE QUEUE [KEY] all|any
        [N=V]...    headers
    qpid-config [OPTIONS] unbind EXCHANGE QUEUE [KEY]
    qpid-config [OPTIONS] purge QUEUE
        remove messages; --count, --filter
    qpid-config [OPTIONS] move QUEUE TO
        move messages to another queue
    qpid-config [OPTIONS] reroute QUEUE [EXCHANGE]
        send messages to EXCHANGE or the alternate exchange
    qpid-config [OPTIONS] list TYPE
        all objects of a type
    qpid-config [OPTIONS] reload-acl
        make the broker read its ACL file again
    qpid-config [OPTIONS] log [LEVEL+]
        print or set the broker's log level
    qpid-config [OPTIONS] shutdown
        shut the broker down; --force: without a majority
    qpid-config acl-check FILE [USER ACTION OBJECT [N=V]...]
        check an ACL file, without a broker
    """
    _check_selection(words, given)
    if words[:1] == ("acl-check",):
        check_acl(words[1:], form)
        return
    if given["start_replica"] is not None:
        raise click.UsageError(options.NO_REPLICATION)
    target = options.target(given, admin=ha_admin)
    given["arguments"] = dict(map(_argument, given["arguments"]))
    work, rest = _meant(words)
    _must_change(work, rest, given)
    given["type"] = rest[0] if work is listing else ""

    async def run(reactor: Any) -> Any:
        client = await target.connect(reactor)

        async def ask(operation: str, type: str, body: dict[str, Any] | None = None, name: str | None = None) -> dict[str, Any]:
            return await client.request(operation, type, name, body, target.timeout_s)

        async def items(type: str, name: str | None = None) -> list[dict[str, Any]]:
            return await client.query(type, name, target.timeout_s)

        result = await work(Task(ask, items, rest, given, client.name))
        await client.close()
        return result

    result = endings.run(run)
    if form == "json":
        show_json(result)
    elif (show := _SHOW.get(work)) is not None:
        show(result, given)
    if work in (queues, exchanges) and rest and not result:
        raise endings.Refused(f"no {words[0].removesuffix('s')} matches {rest[0]!r}")


def _meant(words: tuple[str, ...]) -> tuple[Callable[[Task], Coroutine[Any, Any, Any]], tuple[str, ...]]:
    """The action that the words mean, and its arguments. UsageError says what is possible."""
    match words:
        case ():
            return overview, ()
        case ("exchanges" | "queues" as type, *rest) if len(rest) <= 1:
            return (exchanges if type == "exchanges" else queues), tuple(rest)
        case "add", "exchange", type, name:
            if type not in EXCHANGE_TYPES:
                raise click.UsageError(
                    f"{type!r} is not a type of exchange; the types are: {', '.join(EXCHANGE_TYPES)}"
                    f"{nearest(type, EXCHANGE_TYPES)}"
                )
            return add_exchange, (type, name)
        case "add", "queue", name:
            return add_queue, (name,)
        case "update", ("exchange" | "queue" as type), name:
            return update, (type, name)
        case "del", ("exchange" | "queue" as type), name:
            return (del_exchange if type == "exchange" else del_queue), (name,)
        case "bind", exchange, queue, *rest:
            _binding_arguments(list(rest))  # reports wrong arguments before any broker is asked
            return bind, (exchange, queue, *rest)
        case "unbind", exchange, queue, *rest if len(rest) <= 1:
            return unbind, (exchange, queue, *rest)
        case verb, *rest if verb in _VERBS and _VERBS[verb][1] <= len(rest) <= _VERBS[verb][2]:
            return _VERBS[verb][0], tuple(rest)
        case (("add" | "update" | "del" as verb), ("QueuePolicy" | "TopicPolicy" as type), pattern):
            return {"add": add_policy, "update": update_policy, "del": del_policy}[verb], (type, pattern)
        case "list", type:
            if type not in (*_TYPES, *_POLICIES):
                known = (*_TYPES, *_POLICIES)
                raise click.UsageError(f"there is no type {type!r}; there are: {', '.join(known)}{nearest(type, known)}")
            return listing, (type,)
        case (("add" | "del" | "update" as verb), type, _) if type not in ("exchange", "queue"):
            raise click.UsageError(
                f"cannot {verb} anything of type {type!r}; queues, exchanges, QueuePolicy and TopicPolicy can be made, changed "
                f"and deleted{nearest(type, ('queue', 'exchange', *_POLICIES))}"
            )
        case _:
            raise click.UsageError(_not_meant(words))


def _not_meant(words: tuple[str, ...]) -> str:
    """What is wrong with words that are no command."""
    if words[0] in _USAGE:
        return f"{' '.join(words)!r} has too many or too few words; write: {_USAGE[words[0]]}"
    swapped = len(words) > 1 and words[0] in ("queue", "exchange", *_POLICIES) and words[1] in ("add", "update", "del")
    meant = f"; did you mean '{words[1]} {words[0]}'?" if swapped else nearest(words[0], _USAGE)
    return f"there is no command {words[0]!r}; there are: {', '.join(_USAGE)}{meant}"


def _is_given(value: Any) -> bool:
    """Whether an option is on the command line. 0 is: it takes a limit away."""
    return value is not None and value is not False and value != {}


def _must_change(work: Callable[..., Any], words: tuple[str, ...], given: dict[str, Any]) -> None:
    """UsageError if an update would change nothing."""
    if work not in (update, update_policy) or any(_is_given(given[option]) for option in _CHANGES):
        return
    flags = ["--alternate-exchange"]
    if words[0] != "exchange":
        flags += ["--argument", *(f"--{option.replace('_', '-')}" for option in _ARGUMENTS)]
    raise click.UsageError(f"there is nothing to change: give what is to be changed, with one or more of {', '.join(flags)}")


def _check_selection(words: tuple[str, ...], given: dict[str, Any]) -> None:
    """UsageError if --count or --filter selects nothing: an empty filter, as from a shell's variable that is not set, would mean
    all messages.
    """
    flags = [flag for flag, option in (("--count", "count"), ("--filter", "selector")) if given[option] is not None]
    if flags and words[:1] not in (("purge",), ("move",), ("reroute",)):
        raise click.UsageError(f"{flags[0]} is for purge, move and reroute")
    if given["selector"] is not None and not given["selector"].strip():
        raise click.UsageError("--filter is empty: leave it out to process all messages")


# ---- an ACL file


def check_acl(words: Sequence[str], form: str) -> None:
    """Check whether the file can be used; with more words, whether it allows a user an action. Exit code 1 if not."""
    if not words or len(words) in (2, 3):
        raise click.UsageError("acl-check takes FILE, or FILE USER ACTION OBJECT [PROPERTY=VALUE ...]")
    file, *question = words
    try:
        acl = grammar.read(Path(file).read_text(encoding="utf-8", errors="replace"), file)
    except OSError as error:
        raise endings.Refused(f"cannot read {file}: {error.strerror}") from None
    except grammar.BadAcl as error:
        raise endings.Refused(str(error)) from None
    if not question:
        for line in acl.warnings:
            warn(line)
        found = {"rules": len(acl.rules) + len(acl.hosts), "warnings": len(acl.warnings)}
        mode = "allowed" if acl.mode.allowed else "denied"
        show_json(found) if form == "json" else say(f"{found['rules']} rules; an action without a matching rule is {mode}")
        return
    decision = _decided(acl, *question)
    if "@" not in (user := question[0]) and user != NOBODY:
        warn(f"{user!r} has no realm: a user who has logged in is called NAME@REALM, as in {user}@QPID")
    why = f"{file}:{decision.line}" if decision.line else "no rule decides, and this is the default"
    if form == "json":
        show_json({"allowed": decision.allowed, "logged": decision.logged, "line": decision.line or None})
    else:
        say(f"{'allowed' if decision.allowed else 'denied'}: {why}")
    if not decision.allowed:
        sys.exit(endings.REFUSED)


def _decided(acl: Acl, user: str, action: str, kind: str, *properties: str) -> Decision:
    if (action, kind) not in LOOKUPS:
        asked = ", ".join(sorted(" ".join(lookup) for lookup in LOOKUPS))
        raise click.UsageError(f"a broker never checks `{action} {kind}`; use one of: {asked}")
    told = sorted({LIMITED.get(name, name) for name in LOOKUPS[action, kind]})
    facts: dict[str, str | int] = {}
    for word in properties:
        name, equals, value = word.partition("=")
        if not equals or name not in told:
            raise click.UsageError(f"{word!r}: `{action} {kind}` is checked with {', '.join(told) or 'no properties'}")
        if name in LIMITED.values() and not value.isdecimal():
            raise click.UsageError(f"{word!r}: {name} must be a whole number")
        facts[name] = value
    if (action, kind) == ("create", "connection"):
        return acl.decide_connection(user, str(facts.get("host", "")))
    return acl.decide(user, action, kind, facts)


# ---- the work: questions to the broker, and what they come to


async def overview(task: Task) -> dict[str, Any]:
    """The number of exchanges by type, and of queues."""
    exchanges_, queues_ = await task.items("exchange"), await task.items("queue")
    return {
        "exchanges": {
            type: sum(item["exchangeType"] == type for item in exchanges_) for type in ("topic", "headers", "fanout", "direct")
        },
        "totalExchanges": len(exchanges_),
        "totalQueues": len(queues_),
        "durable": sum(bool(item["durable"]) for item in queues_),
    }


async def exchanges(task: Task) -> list[dict[str, Any]]:
    """All exchanges, or those that match; with -r, their bindings in `boundQueues`."""
    return await _with_bindings(task, "exchange", "boundQueues")


async def queues(task: Task) -> list[dict[str, Any]]:
    """All queues, or those that match; with -r, their bindings in `boundTo`."""
    return await _with_bindings(task, "queue", "boundTo")


async def _with_bindings(task: Task, type: str, field: str) -> list[dict[str, Any]]:
    items = await task.items(type)
    if task.words:
        items = [item for item in items if fnmatch.fnmatchcase(str(item["name"]), task.words[0])]
    if task.options["recursive"]:
        bindings = await task.items("binding")
        for item in items:
            item[field] = [binding for binding in bindings if binding[type] == item["name"]]
    return items


def _definition(task: Task) -> dict[str, Any]:
    """The common part of add queue and add exchange. Level and arguments go to the broker unchanged."""
    options = task.options
    arguments: dict[str, Any] = dict(options["arguments"])
    for option, (argument, type) in _ARGUMENTS.items():
        if _is_given(options[option]):
            arguments[argument] = type(options[option])
    body: dict[str, Any] = {"durable": options["durable"], "arguments": arguments}
    if options["replicate"] is not None:
        body["replicate"] = options["replicate"]
    if options["alternate_exchange"] is not None:
        body["alternateExchange"] = options["alternate_exchange"]
    return body


async def add_exchange(task: Task) -> dict[str, Any]:
    """Create an exchange. Returns the broker's answer."""
    type, name = task.words
    return await task.ask("CREATE", "exchange", _definition(task) | {"exchangeType": type}, name)


async def add_queue(task: Task) -> dict[str, Any]:
    """Create a queue. Returns the broker's answer."""
    return await task.ask("CREATE", "queue", _definition(task) | {"autoDelete": False, "exclusive": False}, task.words[0])


async def update(task: Task) -> dict[str, Any]:
    """Change an existing queue or exchange. Returns the broker's answer."""
    type, name = task.words
    body = _definition(task)
    for field, given in (("durable", task.options["durable"]), ("arguments", body["arguments"])):
        if not given:
            del body[field]
    return await task.ask("UPDATE", type, body, name)


def _policy(task: Task) -> dict[str, Any]:
    """The attributes of a policy from the options. The type of a topic's exchange is an argument, as in qpidd."""
    body = _definition(task) | ({"byUse": False} if task.options["made_only"] else {})
    if "exchange-type" in body["arguments"]:
        body["exchangeType"] = body["arguments"].pop("exchange-type")
    return {field: value for field, value in body.items() if field == "byUse" or value}


async def add_policy(task: Task) -> dict[str, Any]:
    """Create a policy for names. Returns the broker's answer."""
    type, pattern = task.words
    return await task.ask("CREATE", type, _policy(task), pattern)


async def update_policy(task: Task) -> dict[str, Any]:
    """Change a policy. Returns the broker's answer."""
    type, pattern = task.words
    return await task.ask("UPDATE", type, _policy(task), pattern)


async def del_policy(task: Task) -> dict[str, Any]:
    """Delete a policy. Existing nodes do not change."""
    type, pattern = task.words
    return await task.ask("DELETE", type, None, pattern)


async def del_exchange(task: Task) -> dict[str, Any]:
    """Delete an exchange."""
    return await task.ask("DELETE", "exchange", None, task.words[0])


async def del_queue(task: Task) -> dict[str, Any]:
    """Delete a queue. A queue with messages or consumers needs force."""
    options = task.options
    body = {
        "ifEmpty": not (options["force"] or options["force_if_not_empty"]),
        "ifUnused": not (options["force"] or options["force_if_used"]),
    }
    return await task.ask("DELETE", "queue", body, task.words[0])


async def bind(task: Task) -> dict[str, Any]:
    """Bind a queue to an exchange; to a headers exchange with `all|any N=V...`."""
    exchange, queue, *rest = task.words
    key, arguments = _binding_arguments(list(rest))
    if len(rest) == 1 and rest[0] in _MATCHES and not await _is_of_headers(task, exchange):
        key, arguments = rest[0], {}
    arguments |= task.options["arguments"]
    body = {"exchange": exchange, "queue": queue, "key": key, "arguments": arguments}
    answer = await task.ask("CREATE", "binding", body)
    await _warn_of_unreplicated(task, exchange, queue)
    return answer


def _binding_arguments(rest: list[str]) -> tuple[str, dict[str, Any]]:
    """The key, and the arguments of a headers binding. `all` or `any` may be in the key's place; before another of them it is the
    key.
    """
    keyless = not rest or (rest[0] in _MATCHES and not (len(rest) > 1 and rest[1] in _MATCHES))
    key = "" if keyless else rest.pop(0)
    if not rest:
        return key, {}
    match, *pairs = rest
    if match not in _MATCHES:
        raise click.UsageError(f"for a headers exchange, the word after the key must be all or any, not {match!r}")
    wrong = next((pair for pair in pairs if "=" not in pair.lstrip("=")), None)
    if wrong is not None:
        raise click.UsageError(f"{wrong!r} is not N=V, as in: bind EXCHANGE QUEUE KEY any colour=red")
    return key, {"x-match": match} | dict(map(_argument, pairs))


async def _is_of_headers(task: Task, exchange: str) -> bool:
    """Whether a lone `all` or `any` says how this exchange compares headers. For another exchange it is the key."""
    found = await task.items("exchange", exchange)
    return any(item.get("name") == exchange and item.get("exchangeType") == "headers" for item in found)


async def _warn_of_unreplicated(task: Task, exchange: str, queue: str) -> None:
    """Warn if messages of a replicated queue may arrive through a binding that a new primary does not have. The binding is made
    already: a user who may not look at both gets no warning, and no error.
    """
    from broker.client import ManagementError  # this import takes time

    try:
        found = [next(iter(await task.items("queue", queue)), {}), next(iter(await task.items("exchange", exchange)), {})]
    except ManagementError:
        return
    levels = [item.get("replicate") for item in found]
    if levels[0] in _REPLICATED and levels[1] not in _REPLICATED:
        warn(
            f"queue {queue!r} is replicated, but exchange {exchange!r} is not, so the binding will be missing after a failover; "
            f"make the exchange with --replicate {levels[0]}"
        )


async def unbind(task: Task) -> dict[str, Any]:
    """Delete a binding."""
    exchange, queue, *key = task.words
    return await task.ask("DELETE", "binding", {"exchange": exchange, "queue": queue, "key": key[0] if key else ""})


async def purge(task: Task) -> dict[str, Any]:
    """Remove messages of a queue. Returns how many were removed, and how many were left."""
    return await _in_bulk(task, "PURGE", {})


async def move(task: Task) -> dict[str, Any]:
    """Move messages of a queue to another one. Returns how many were moved, and how many were left."""
    return await _in_bulk(task, "MOVE", {"to": task.words[1]})


async def reroute(task: Task) -> dict[str, Any]:
    """Send messages of a queue through an exchange, or its alternate exchange. Returns how many were sent, and how many
    were left.
    """
    return await _in_bulk(task, "REROUTE", {"exchange": task.words[1]} if task.words[1:] else {})


async def _in_bulk(task: Task, operation: str, body: dict[str, Any]) -> dict[str, Any]:
    """Repeat the request from the last position, until the broker has processed all messages."""
    most, total = task.options["count"], {"count": 0, "left": 0, "repeated": 0}
    body |= {} if task.options["selector"] is None else {"filter": task.options["selector"]}
    while True:
        if most is not None:
            body["count"] = most - total["count"]
        answer = await task.ask(operation, "queue", body, task.words[0])
        for field in total:
            total[field] += answer.get(field) or 0
        if not answer.get("next") or total["count"] == most:
            return total
        body["after"] = answer["next"]


async def reload_acl(task: Task) -> dict[str, Any]:
    """Make the broker read its ACL file again. Returns its answer."""
    return await task.ask("RELOAD", "acl")


async def log(task: Task) -> dict[str, Any]:
    """Show the lowest level that the broker logs; with a word, set it."""
    if task.words:
        return await task.ask("SET", "log", {"level": task.words[0]})
    return next(iter(await task.items("log")), {})


async def shutdown(task: Task) -> dict[str, Any]:
    """Stop the broker in order. A primary hands over first."""
    await task.ask("STOP", "ha", {"force": task.options["force"]})
    return {"broker": task.broker, "done": True}


async def listing(task: Task) -> list[dict[str, Any]]:
    """All objects of a type, with all properties or the requested ones."""
    items = await task.items(task.words[0])
    wanted = task.options["properties"]
    known = list(dict.fromkeys(field for item in items for field in item))
    for field in wanted if items else ():
        if field not in known:
            hint = nearest(field, known) or f"; there are: {', '.join(known)}"
            warn(f"no {task.words[0]} has a property {field!r}{hint}")
    return [{field: value for field, value in item.items() if not wanted or field in wanted} for item in items]


_VERBS: dict[str, tuple[Callable[[Task], Coroutine[Any, Any, Any]], int, int]] = {
    "purge": (purge, 1, 1),
    "move": (move, 2, 2),
    "reroute": (reroute, 1, 2),
    "log": (log, 0, 1),
    "shutdown": (shutdown, 0, 0),
    "reload-acl": (reload_acl, 0, 0),
}
"""First word -> its function, and the minimum and maximum number of its arguments."""

_ANY_OF = "queue NAME, exchange NAME, QueuePolicy PATTERN or TopicPolicy PATTERN"
_USAGE = {
    "exchanges": "exchanges [FILTER]",
    "queues": "queues [FILTER]",
    "add": "add queue NAME, exchange TYPE NAME, QueuePolicy PATTERN or TopicPolicy PATTERN",
    "update": f"update {_ANY_OF}",
    "del": f"del {_ANY_OF}",
    "bind": "bind EXCHANGE QUEUE [KEY]",
    "unbind": "unbind EXCHANGE QUEUE [KEY]",
    "purge": "purge QUEUE",
    "move": "move QUEUE TO",
    "reroute": "reroute QUEUE [EXCHANGE]",
    "list": "list TYPE",
    "log": "log [LEVEL+]",
    "shutdown": "shutdown",
    "reload-acl": "reload-acl",
    "acl-check": "acl-check FILE [USER ACTION OBJECT [PROPERTY=VALUE]...]",
}
"""First word -> what follows it."""


# ---- printing


def _show_overview(counts: dict[str, Any], options: dict[str, Any]) -> None:
    lines = [("Total Exchanges", counts["totalExchanges"]), *counts["exchanges"].items()]
    lines += [("Total Queues", counts["totalQueues"]), ("durable", counts["durable"])]
    lines += [("non-durable", counts["totalQueues"] - counts["durable"])]
    for label, number in lines:
        if label == "Total Queues":
            click.echo()
        say(f"{label:>15}: {number}")


def _attributes(item: dict[str, Any]) -> str:
    """An object's properties as the options that would create it, for a shell."""
    parts = ["--durable"] if item.get("durable") else []
    parts += [f"--{option}" for option, field in (("auto-del", "autoDelete"), ("excl", "exclusive")) if item.get(field)]
    parts += [f"--replicate={item['replicate']}"] if item.get("replicate") in _REPLICATED else []
    parts += [f"--alternate-exchange={shlex.quote(item['alternateExchange'])}"] if item.get("alternateExchange") else []
    option_of = {argument: option.replace("_", "-") for option, (argument, _) in _ARGUMENTS.items()}
    for name, value in sorted((item.get("arguments") or {}).items()):
        if name in _FLAGS and value == 1:
            parts.append(f"--{option_of[name]}")
        elif name in option_of and name not in _FLAGS:
            parts.append(f"--{option_of[name]}={shlex.quote(str(value))}")
        else:
            parts.append(f"--argument {shlex.quote(f'{name}={value}')}")
    return " ".join(parts)


def _show_exchanges(items: list[dict[str, Any]], options: dict[str, Any]) -> None:
    if options["recursive"]:
        for item in items:
            say(f"Exchange '{item['name']}' ({item['exchangeType']})")
            _show_bindings(item["boundQueues"], "queue")
        return
    _show_list(("Type", "Exchange Name"), [(item["exchangeType"], item["name"], _attributes(item)) for item in items])


def _show_queues(items: list[dict[str, Any]], options: dict[str, Any]) -> None:
    if options["recursive"]:
        for item in items:
            say(f"Queue '{item['name']}'")
            _show_bindings(item["boundTo"], "exchange")
        return
    _show_list(("Queue Name",), [(item["name"], _attributes(item)) for item in items])


def _show_bindings(bindings: list[dict[str, Any]], other: str) -> None:
    for binding in bindings:
        arguments = f" {binding['arguments']}" if binding.get("arguments") else ""
        name = binding[other] or "''"
        say(f"    bind [{binding['key']}] => {name}{arguments}")


def _show_list(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print names and attributes in columns."""
    headings = (*headings, "Attributes")
    rows = [tuple(map(shown, row)) for row in rows]
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in [headings, *rows]
    ]
    say(lines[0])
    click.echo("=" * max(65, *map(len, lines)))
    for line in lines[1:]:
        say(line.rstrip())


_LEFT = "consumers hold them, or no queue here takes them"


def _show_bulk(done: str, why: str) -> Callable[[Any, dict[str, Any]], None]:
    def show(total: dict[str, Any], options: dict[str, Any]) -> None:
        say(f"{total['count']} messages were {done}")
        if total["repeated"]:
            warn(f"{total['repeated']} were left: their queue has had them within its x-duplicate-window")
        if total["left"] > total["repeated"]:
            warn(f"{total['left'] - total['repeated']} were left: {why}")

    return show


def _show_acl(item: dict[str, Any], options: dict[str, Any]) -> None:
    rest = "allowed" if item["mode"] == "allow" else "denied"
    say(f"{item['rules']} rules of {item['file']} are in force, the rest is {rest}; checksum {item['checksum']}")
    if item["unused"]:
        warn(f"{item['unused']} of them are never used: qpid-config acl-check {item['file']} names them")


_NOTHING = {type: f"there is no {type}" for type in _TYPES} | {
    "acl": options.NO_ACL,
    "history": "no broker of this cluster has been the primary yet, or the broker is in no cluster",
    "QueuePolicy": "there is no policy for queues",
    "TopicPolicy": "there is no policy for topics",
}
"""What an empty list of a type means."""


def _show_listing(items: list[dict[str, Any]], options: dict[str, Any]) -> None:
    fields = list(dict.fromkeys(field for item in items for field in item))
    if not items:
        click.echo(_NOTHING[options["type"]])
    elif fields:
        show_table("", [Column(field, field, text) for field in fields], items)


_SHOW: dict[Any, Callable[[Any, dict[str, Any]], None]] = {
    overview: _show_overview,
    exchanges: _show_exchanges,
    queues: _show_queues,
    listing: _show_listing,
    log: lambda item, options: say(item.get("level", "")),
    purge: _show_bulk("purged", "consumers hold them"),
    move: _show_bulk("moved", _LEFT),
    reroute: _show_bulk("rerouted", _LEFT),
    reload_acl: _show_acl,
    shutdown: lambda item, options: say(f"{item['broker']} shuts down"),
}


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
