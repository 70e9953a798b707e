"""`qpid-route`: creates, lists and deletes routes, by which a broker or cluster fetches messages from another one.

The command line is that of Apache Qpid's tool: words for the action (`route add DEST SRC EXCHANGE KEY`), and options
anywhere between them. The request goes to DEST; SRC is written into the route, and DEST connects to it. Either may be
all brokers of a cluster. Options that have no meaning here, because a route is always durable, replicated and
acknowledged, are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click

from broker.client import ClientError, ConnectError, ManagementClient, ManagementError
from broker.core import urls
from broker.core.sasl_client import MECHANISMS
from broker.options import SettingsError, nearest
from cli import endings, options
from cli.output import note, say, show_json

NAME = "qpid-route"
LOCAL = "localhost"
_CONFLICT, _NOT_FOUND = 409, 404
_LINK_LINE = "{host:<15} {port:<7} {transport:<12} {durable}     {state:<17} {error}"


Reach = Callable[[str], Coroutine[Any, Any, ManagementClient]]
"""Connects to another broker by its URL, in the same way as to DEST."""


@dataclass(frozen=True, slots=True)
class Task:
    """The meaning of the words: the broker to ask, the action, and the route."""

    dest: str
    work: Callable[[ManagementClient, Task, dict[str, Any], Reach], Coroutine[Any, Any, Any]]
    body: dict[str, Any]
    show: Callable[[Any, Task, dict[str, Any]], None]
    timeout_s: float = 10.0
    """How long it may take to answer a request."""


def _flags(function: Callable[..., Any]) -> Callable[..., Any]:
    table: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (("--timeout",), {"metavar": "SECONDS", "help": "Time to wait for an answer. 0: no limit. [default: 10]"}),
        (("-v", "--verbose"), {"is_flag": True, "help": "Say what was done."}),
        (
            ("-q", "--quiet"),
            {"is_flag": True, "help": "A route to add that exists, or one to delete that does not, is not an error."},
        ),
        (("-d", "--durable"), {"is_flag": True, "help": "Routes are always durable."}),
        (("-e", "--del-empty-link"), {"is_flag": True, "help": "Links are always deleted with their last route."}),
        (("-t", "--transport"), {"metavar": "tcp|ssl", "default": "tcp", "help": "How DEST reaches SRC. [tcp]"}),
        (("--force",), {"is_flag": True, "help": "del, flush: do not wait until the source has deleted the route's queue."}),
        (("-s", "--src-local"), {"is_flag": True, "help": "Refused: a route pulls messages, it does not push."}),
        (("--ack",), {"metavar": "N", "help": "Refused: messages are acknowledged when they are committed."}),
        (("--credit",), {"metavar": "N", "help": "Refused: the broker sets the credit from its free space."}),
    )
    for names, settings in reversed(table):
        function = click.option(*names, **settings)(function)
    return function


@click.command(context_settings=options.CONTEXT)
@click.argument("words", nargs=-1, required=True)
@_flags
@options.ha_admin_option
@partial(options.connection_options, without=("broker", "timeout"))
@options.version_option(NAME)
def command(words: tuple[str, ...], ha_admin: bool, form: str, **given: Any) -> None:
    """Manage routes, which fetch messages from other brokers.

    \b
    qpid-route [OPTIONS] route add DEST SRC EXCHANGE KEY
        [TAG] [EXCLUDE,...] [MECHANISM]
    qpid-route [OPTIONS] route del DEST SRC EXCHANGE KEY
    qpid-route [OPTIONS] queue add DEST SRC EXCHANGE QUEUE
        [MECHANISM]
    qpid-route [OPTIONS] queue del DEST SRC EXCHANGE QUEUE
    qpid-route [OPTIONS] dynamic add DEST SRC EXCHANGE
        [TAG] [EXCLUDE,...] [MECHANISM]
        the keys that EXCHANGE of DEST has bindings for
    qpid-route [OPTIONS] dynamic del DEST SRC EXCHANGE
    qpid-route [OPTIONS] route list|flush [DEST]
    qpid-route [OPTIONS] route map [BROKER]
        routes of the broker, and of its sources
    qpid-route [OPTIONS] link list [DEST]
    qpid-route [OPTIONS] link del DEST SRC
        all routes from SRC

    DEST and SRC: [amqps:][user@]host[:port],... EXCHANGE is an exchange of DEST and, except for `queue`, also of SRC. For `queue`
    it may be a queue of DEST. The brokers of DEST have the passwords for SRC in the file of their option --route-passwords.
    """
    for option, why in _WITHOUT_MEANING.items():
        if given.pop(option):
            raise click.UsageError(why)
    if given["transport"] not in ("tcp", "ssl"):
        raise click.UsageError(f"{given['transport']!r} is not a transport: use tcp or ssl")
    task = _meant(words, ssl=given["transport"] == "ssl")
    flags = {name: given.pop(name) for name in ("verbose", "quiet", "force", "durable", "del_empty_link", "transport")}
    target = options.target(given | {"broker": task.dest}, admin=True, name="DEST")
    task = replace(task, timeout_s=target.timeout_s)

    async def run(reactor: Any) -> Any:
        client = await target.connect(reactor)

        async def reach(url: str) -> ManagementClient:
            try:
                there = target.at(*urls.parse(url).addresses)
            except SettingsError as error:
                raise ConnectError(str(error)) from None
            return await there.connect(reactor)

        result = await task.work(client, task, flags, reach)
        await client.close()
        return result

    result = endings.run(run)
    if form == "json":
        show_json(result)
    else:
        task.show(result, task, flags)


_WITHOUT_MEANING = {
    "src_local": "--src-local has no meaning here: a route fetches messages, so make it on the broker that is to have them",
    "ack": "--ack has no meaning here: each message is acknowledged when it is committed, many at a time",
    "credit": "--credit has no meaning here: a route fetches as much as there is room for",
}


def _meant(words: tuple[str, ...], *, ssl: bool) -> Task:
    """The action that the words mean. UsageError says what is possible."""
    match words:
        case "route", "add", dest, source, exchange, key, *more if len(more) <= 3:
            body = _body("exchange", _other(source, dest), exchange, key, ssl=ssl)
            return Task(dest, _add, body | _extra(*more), _show_change)
        case "dynamic", "add", dest, source, exchange, *more if len(more) <= 3:
            body = _body("dynamic", _other(source, dest), exchange, "", ssl=ssl)
            return Task(dest, _add, body | _extra(*more), _show_change)
        case "dynamic", "del", dest, source, exchange:
            return Task(dest, _delete, _body("dynamic", source, exchange, "", ssl=ssl), _show_change)
        case "queue", "add", dest, source, exchange, queue, *more if len(more) <= 1:
            extra = {"mechanism": _mechanism(*more)}
            return Task(dest, _add, _body("queue", source, exchange, queue, ssl=ssl) | extra, _show_change)
        case (("route" | "queue" as kind), "del", dest, source, exchange, key):
            body = _body("exchange" if kind == "route" else "queue", source, exchange, key, ssl=ssl)
            return Task(dest, _delete, body, _show_change)
        case "route", "list", *rest if len(rest) <= 1:
            return Task("".join(rest) or LOCAL, _list, {}, _show_routes)
        case "link", "list", *rest if len(rest) <= 1:
            return Task("".join(rest) or LOCAL, _list, {}, _show_links)
        case "route", "flush", *rest if len(rest) <= 1:
            return Task("".join(rest) or LOCAL, _flush, {}, _show_flushed)
        case "link", "del", dest, source:
            return Task(dest, _flush, {"source": _source(source, ssl=ssl)}, _show_flushed)
        case "link", "add", *_:
            raise click.UsageError("links exist only for routes: add a route with `route add` or `queue add`")
        case "route", "map", *rest if len(rest) <= 1:
            return Task("".join(rest) or LOCAL, _map, {}, _show_map)
        case _:
            raise click.UsageError(_not_meant(words))


_USAGE = {
    "route add": "DEST SRC EXCHANGE KEY [TAG] [EXCLUDE,...] [MECHANISM]",
    "route del": "DEST SRC EXCHANGE KEY",
    "queue add": "DEST SRC EXCHANGE QUEUE [MECHANISM]",
    "queue del": "DEST SRC EXCHANGE QUEUE",
    "dynamic add": "DEST SRC EXCHANGE [TAG] [EXCLUDE,...] [MECHANISM]",
    "dynamic del": "DEST SRC EXCHANGE",
    "route list": "[DEST]",
    "route flush": "[DEST]",
    "route map": "[BROKER]",
    "link list": "[DEST]",
    "link del": "DEST SRC",
}
"""The first two words -> what follows them."""


def _not_meant(words: tuple[str, ...]) -> str:
    """What is wrong with words that are no command."""
    name = " ".join(words[:2])
    if name in _USAGE:
        return f"{' '.join(words)!r} has too many or too few words; write: {name} {_USAGE[name]}"
    swapped = next((known for known in _USAGE if sorted(known.split()) == sorted(words[:2])), "")
    halves = [known for known in _USAGE if known.split()[1] == words[0]]  # the first word was left out
    meant = f"; did you mean {swapped!r}?" if swapped else nearest(name, _USAGE)
    if not meant and halves:
        meant = f"; did you mean {' or '.join(map(repr, halves))}?"
    return f"there is no command {name!r}; there are: {', '.join(_USAGE)}{meant}"


def _extra(tag: str = "", exclude: str = "", mechanism: str = "") -> dict[str, Any]:
    """What a route from an exchange has besides its source and its exchange."""
    return {"tag": tag, "exclude": [each for each in exclude.split(",") if each], "mechanism": _mechanism(mechanism)}


def _mechanism(name: str = "") -> str:
    if name and name not in MECHANISMS:
        raise click.UsageError(f"{name!r} is not a SASL mechanism; the mechanisms are: {', '.join(MECHANISMS)}")
    return name


def _source(text: str, *, ssl: bool) -> str:
    """The URL of a source in the form of a route. BadUrl, UsageError."""
    plain = not text.lower().startswith(("amqp:", "amqps:", "tcp:", "ssl:"))
    url = urls.parse(f"amqps:{text}" if ssl and plain else text)
    if url.password:
        raise click.UsageError(
            "other users can see a password of SRC here and in the route: leave it out, and write it into the file that "
            "--route-passwords of the brokers of DEST names"
        )
    return str(url)


def _other(source: str, dest: str) -> str:
    """The source, if it is not DEST, by its addresses. BadUrl, UsageError."""
    same = [name for name in urls.parse(source).names if name in urls.parse(dest).names]
    if same:
        raise click.UsageError(
            f"DEST and SRC are the same broker, {same[0]}: a route from an exchange fetches from another broker or cluster"
        )
    return source


def _body(kind: str, source: str, exchange: str, key: str, *, ssl: bool) -> dict[str, Any]:
    return {"kind": kind, "source": _source(source, ssl=ssl), "exchange": exchange, "key": key}


# ---- the work


async def _add(client: ManagementClient, task: Task, flags: dict[str, Any], reach: Reach) -> dict[str, Any]:
    try:
        return await client.request("CREATE", "route", None, task.body, task.timeout_s)
    except ManagementError as error:
        if error.status != _CONFLICT or "exists already" not in error.text:
            raise
        if not flags["quiet"]:
            duplicate = f"Duplicate Route - ignoring: {task.body['exchange']}({task.body['key']})"
            raise endings.Refused(duplicate) from None
        return {}


async def _delete(client: ManagementClient, task: Task, flags: dict[str, Any], reach: Reach) -> dict[str, Any]:
    try:
        return await client.request("DELETE", "route", None, task.body | {"force": flags["force"]}, task.timeout_s)
    except ManagementError as error:
        if error.status != _NOT_FOUND:
            raise
        if not flags["quiet"]:
            raise endings.Refused("Route not found") from None
        return {}


async def _list(client: ManagementClient, task: Task, flags: dict[str, Any], reach: Reach) -> list[dict[str, Any]]:
    return await client.query("route", timeout_s=task.timeout_s)


async def _flush(client: ManagementClient, task: Task, flags: dict[str, Any], reach: Reach) -> list[dict[str, Any]]:
    """Delete all routes, or those from one source."""
    found = await client.query("route", timeout_s=task.timeout_s)
    gone = [item for item in found if task.body.get("source", item["source"]) == item["source"]]
    if not gone and "source" in task.body and not flags["quiet"]:
        raise endings.Refused(f"there is no link from {task.body['source']}")
    for item in gone:
        if item["ending"] and not flags["force"]:
            continue
        body = {field: item[field] for field in ("kind", "source", "exchange", "key")}
        await client.request("DELETE", "route", None, body | {"force": flags["force"]}, task.timeout_s)
    return gone


async def _map(client: ManagementClient, task: Task, flags: dict[str, Any], reach: Reach) -> dict[str, Any]:
    """Show the routes of this broker, of the brokers that they fetch from, and so on, with their state."""
    brokers: dict[str, str] = {}
    routes: list[dict[str, Any]] = []
    left = [task.dest]
    while left:
        url = left.pop(0)
        name = urls.parse(url).names[0]
        if name in brokers:
            continue
        try:
            there = client if url == task.dest else await reach(url)
            items = await there.query("route", timeout_s=task.timeout_s)
        except ClientError as error:
            brokers[name] = str(error)
            continue
        brokers[name] = "Ok"
        routes += [item | {"broker": name} for item in items]
        left += [item["source"] for item in items]
        if there is not client:
            await there.close()
    return {"brokers": brokers, "routes": routes}


# ---- what is printed


def _show_change(answer: dict[str, Any], task: Task, flags: dict[str, Any]) -> None:
    if answer.get("ending"):
        click.echo("the route ends as soon as its source has deleted its queue; --force does not wait for that")
    elif flags["verbose"] and answer:
        say(f"route {answer['uuid']}: {task.body['source']} {task.body['exchange']} {task.body['key'] or _key(task.body)}")


def _show_routes(items: list[dict[str, Any]], task: Task, flags: dict[str, Any]) -> None:
    if not items:
        note(f"{urls.parse(task.dest).names[0]} has no route")
    dest, rest = urls.parse(task.dest).names[0], [f"{item['exchange']} {_key(item)}" for item in items]
    lines = [f"{dest} {_place(item)} {end}" for item, end in zip(items, rest, strict=True)]
    whole = [f"{dest} {_whole(item)} {end}" for item, end in zip(items, rest, strict=True)]
    for line in _told_apart(lines, whole):
        say(line)


def _place(item: dict[str, Any]) -> str:
    return f"{item['host']}:{item['port']}"


def _whole(item: dict[str, Any]) -> str:
    """The source's URL, as the commands that delete the route need it."""
    return str(item["source"]).removeprefix("amqp:")


def _told_apart(lines: Sequence[str], whole: Sequence[str]) -> list[str]:
    """The lines; instead of equal ones those of `whole`, because their routes differ by the user or by a further address."""
    often = Counter(lines)
    return [other if often[line] > 1 else line for line, other in zip(lines, whole, strict=True)]


def _key(item: dict[str, Any]) -> str:
    """The word of a route that stands where the original tool has the key."""
    return {"queue": f"<queue {item['key']}>", "dynamic": "<dynamic>"}.get(item["kind"], str(item["key"]))


def _show_links(items: list[dict[str, Any]], task: Task, flags: dict[str, Any]) -> None:
    """Print a line for each source. If one of its routes has a link that does not work, it shows this link."""
    links: dict[str, dict[str, Any]] = {}
    for item in items:
        known = links.get(item["source"])
        if known is None or (item["lastError"] and not known["lastError"]):
            links[item["source"]] = item
    if not links:
        click.echo("No Links Found")
        return
    click.echo("\nHost            Port    Transport Durable  State             Last Error")
    click.echo("=" * 77)
    hosts = [str(item["host"]) for item in links.values()]
    places = [f"{_place(item)} {item['transport']}" for item in links.values()]
    often = Counter(places)
    for item, place, host in zip(links.values(), places, hosts, strict=True):
        fields = {name: item[name] for name in ("port", "transport", "state")}
        shown = host if often[place] == 1 else _whole(item).removesuffix(f":{item['port']}" if "," not in _whole(item) else "")
        say(_LINK_LINE.format(**fields, host=shown, durable="Y", error=item["lastError"]).rstrip())


def _show_map(found: dict[str, Any], task: Task, flags: dict[str, Any]) -> None:
    click.echo("\nFinding Linked Brokers:")
    for name, told in found["brokers"].items():
        say(f"   {name}... {told}")
    _show_dynamic([item for item in found["routes"] if item["kind"] == "dynamic"])
    click.echo("Static Routes:")
    static = [item for item in found["routes"] if item["kind"] != "dynamic"]
    for line in _told_apart([_static(item, _place(item)) for item in static], [_static(item, _whole(item)) for item in static]):
        say(line)
    if not static:
        click.echo("   none found")
    click.echo()


def _static(item: dict[str, Any], source: str) -> str:
    end = f"(queue={item['key']})" if item["kind"] == "queue" else f"(ex={item['exchange']}) key={item['key']}"
    return f"   {item['broker']}(ex={item['exchange']}) <= {source}{end}"


def _show_dynamic(routes: list[dict[str, Any]]) -> None:
    """Print the dynamic routes by exchange. Two routes between the same brokers in both directions are one line."""
    click.echo("\nDynamic Routes:\n" if routes else "\nDynamic Routes:\n   none found\n")
    for exchange in dict.fromkeys(item["exchange"] for item in routes):
        here = [item for item in routes if item["exchange"] == exchange]
        pairs = [(_place(item), str(item["broker"])) for item in here]
        often = Counter(pairs)
        say(f"  Exchange {exchange}:")
        for number, (item, (source, dest)) in enumerate(zip(here, pairs, strict=True)):
            if not often[source, dest] == often[dest, source] == 1:
                say(f"    {_whole(item) if often[source, dest] > 1 else source}  => {dest}")
            elif (dest, source) not in pairs[:number]:
                say(f"    {source} <=> {dest}")
        click.echo()


def _show_flushed(items: list[dict[str, Any]], task: Task, flags: dict[str, Any]) -> None:
    for item in items if flags["verbose"] else ():
        shown = _key(item) if item["kind"] == "dynamic" else item["key"]
        say(f"Deleting Bridge: {item['host']}:{item['port']} {item['exchange']} {shown}... Ok")


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
