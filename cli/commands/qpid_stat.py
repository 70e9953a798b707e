"""`qpid-stat`: shows the state of a broker as tables: the broker, its connections, exchanges, queues, subscriptions,
rules.

Each call prints one kind of table. Columns and layout are those of Apache Qpid's tool of that name, so that scripts can
still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from cli import endings, options
from cli.output import Column, count, counting, duration, flag, note, show_json, show_table, text

NAME = "qpid-stat"
MOST_ROWS = 50
"""The number of rows of a table without --limit."""
_PROCESS_CHARS = 64
"""The width of the name of a process, which its client chooses."""
_LINK_CHARS = 128
"""The width of the name of a link, which its client chooses. Those that Qpid's clients make up have about 80 characters, of which
the last ones differ."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of table."""

    type: str
    title: str
    columns: tuple[Column, ...]


def _word(value: Any) -> str:
    """A text; as in the original, `-` for one that is empty, so that a script can count the columns."""
    return text(value) or "-"


def _connection_table() -> Kind:
    return Kind(
        "connection",
        "Connections",
        (
            Column("connection", "address", text),
            Column("cproc", "processName", _word, most=_PROCESS_CHARS),
            Column("cpid", "processId", _word),
            Column("mech", "mechanism", _word),
            Column("auth", "user", _word),
            Column("connected", "connected_s", duration, number=True),
            Column("idle", "idle_s", duration, number=True),
            counting("msgIn", "messagesIn"),
            counting("msgOut", "messagesOut"),
            Column("unread", "unread_s", duration, number=True),
        ),
    )


KINDS = {
    "general": Kind(
        "broker",
        "Broker Summary:",
        (
            Column("uptime", "uptime_s", duration),
            Column("cluster", "cluster", lambda value: str(value or "<standalone>")),
            counting("connections", "connections"),
            counting("sessions", "sessions"),
            counting("exchanges", "exchanges"),
            counting("queues", "queues"),
        ),
    ),
    "connections": _connection_table(),
    "exchanges": Kind(
        "exchange",
        "Exchanges",
        (
            Column("exchange", "name", text),
            Column("type", "exchangeType", text),
            Column("dur", "durable", flag),
            counting("bind", "bindings"),
            counting("msgIn", "messagesIn"),
            counting("msgOut", "messagesRouted"),
            counting("msgDrop", "messagesDropped"),
        ),
    ),
    "queues": Kind(
        "queue",
        "Queues",
        (
            Column("queue", "name", text),
            Column("dur", "durable", flag),
            Column("autoDel", "autoDelete", flag),
            Column("excl", "exclusive", flag),
            counting("msg", "messages"),
            counting("msgIn", "messagesIn"),
            counting("msgOut", "messagesOut"),
            counting("bytes", "bytes"),
            counting("bytesIn", "bytesIn"),
            counting("bytesOut", "bytesOut"),
            counting("cons", "consumers"),
            counting("bind", "bindings"),
        ),
    ),
    "subscriptions": Kind(
        "subscription",
        "Subscriptions",
        (
            Column("subscr", "id", text, most=_LINK_CHARS),
            Column("queue", "queue", text),
            Column("conn", "connection", text),
            Column("procName", "processName", _word, most=_PROCESS_CHARS),
            Column("procId", "processId", _word),
            Column("browse", "browse", flag),
            Column("acked", "acknowledged", flag),
            Column("excl", "exclusive", flag),
            Column("creditMode", "creditMode", _word),
            counting("delivered", "delivered"),
            counting("sessUnacked", "unacked"),
            Column("still", "still_s", duration, number=True),
        ),
    ),
    "memory": Kind("memory", "Broker Memory Stats", (Column("statistic", "name", text), counting("bytes", "bytes"))),
    "acl": Kind(
        "acl",
        "ACL",
        (
            Column("file", "file", text),
            Column("checksum", "checksum", text),
            counting("rules", "rules"),
            Column("mode", "mode", text),
            counting("unused", "unused"),
            counting("denied", "denied"),
            Column("lastLoad", "loaded", text),
        ),
    ),
}
_SHORT = {
    "general": "-g",
    "connections": "-c",
    "exchanges": "-e",
    "queues": "-q",
    "subscriptions": "-u",
    "memory": "-m",
    "acl": "--acl",
}

_SHOWN = {"acl": "rules in force"}


def _kind_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, short in reversed(_SHORT.items()):
        flags = dict.fromkeys((short, f"--{name}"))
        function = click.option(*flags, "kinds", flag_value=name, multiple=True, help=f"Show the {_SHOWN.get(name, name)}.")(
            function
        )
    return function


@click.command(context_settings=options.CONTEXT)
@_kind_options
@click.argument("queue", required=False)
@click.option("-S", "--sort-by", metavar="COLUMN", help="Sort by this column.")
@click.option("-I", "--increasing", is_flag=True, help="Sort in ascending order.")
@click.option(
    "-L", "--limit", metavar="N", type=click.IntRange(0), help="Maximum number of rows. 0: all. [default: 50; JSON: all]"
)
@options.ha_admin_option
@options.connection_options
@options.version_option(NAME)
def command(
    kinds: tuple[str, ...],
    queue: str | None,
    sort_by: str | None,
    increasing: bool,
    limit: int | None,
    ha_admin: bool,
    form: str,
    **given: Any,
) -> None:
    """Show what a broker is doing: -g the broker, -c connections, -e exchanges, -q queues, -u subscriptions,
    -m memory, --acl rules.

    With -q and the name of a queue, show all details of that queue.
    """
    if len(set(kinds)) != 1:
        raise click.UsageError(f"choose one table to show: {', '.join(_SHORT.values())}")
    if queue is not None and kinds[0] != "queues":
        raise click.UsageError(f"only -q takes the name of a queue, not {_SHORT[kinds[0]]}")
    if queue == "":
        raise click.UsageError("the name of the queue is empty: leave it out to see all queues")
    kind = KINDS[kinds[0]]
    if sort_by is not None and sort_by not in [column.heading for column in kind.columns]:
        raise click.UsageError(f"there is no column {sort_by!r}; there are: {', '.join(c.heading for c in kind.columns)}")
    target = options.target(given, admin=ha_admin)

    async def ask(reactor: Any) -> list[dict[str, Any]]:
        client = await target.connect(reactor)
        items = await client.query(kind.type, queue, timeout_s=target.timeout_s)
        await client.close()
        return items

    if limit is None:
        limit = 0 if form == "json" else MOST_ROWS
    found = _sorted(endings.run(ask), kind.columns, sort_by, increasing)
    items = found[: limit or None]
    if form == "json":
        show_json(items)
    elif queue is not None:
        _show_queue(items, queue)
    else:
        show_table(kind.title, kind.columns, items)
        if kind.type == "acl" and not items:
            note(options.NO_ACL)
    if len(items) < len(found):
        note(f"{len(items)} of {len(found)} rows are shown; -L 0 shows all")


def _sorted(
    items: list[dict[str, Any]], columns: Sequence[Column], heading: str | None, increasing: bool
) -> list[dict[str, Any]]:
    """Sort by this column, the largest first unless `increasing`; without a column, keep the broker's order."""
    if heading is None:
        return items
    column = next(column for column in columns if column.heading == heading)
    numeric = column.number or column.write is duration

    def key(item: dict[str, Any]) -> Any:
        value = item.get(column.field)
        return (value or 0) if numeric else column.write(value)

    return sorted(items, key=key, reverse=not increasing)


def _show_queue(items: list[dict[str, Any]], name: str) -> None:
    """Print all details of one queue: its properties, its arguments, its counters."""
    if not items:
        raise endings.Refused(f"there is no queue named {name!r}")
    (item,) = items[:1]
    properties = (
        Column("Name", "name", text),
        Column("Durable", "durable", flag),
        Column("AutoDelete", "autoDelete", flag),
        Column("Exclusive", "exclusive", flag),
        Column("Replicate", "replicate", text),
        counting("Consumers", "consumers"),
        counting("Bindings", "bindings"),
        Column("Alerts", "alerts", lambda raised: ",".join(raised or ())),
    )
    show_table("Properties:", properties, [item])
    optional = dict(item.get("arguments") or {}) | (
        {"alternate-exchange": item["alternateExchange"]} if item.get("alternateExchange") else {}
    )
    click.echo()
    columns = (Column("Property", "property", text), Column("Value", "value", text))
    show_table("Optional Properties:", columns, [{"property": key, "value": value} for key, value in sorted(optional.items())])
    statistics = [
        {"statistic": label, "messages": item.get(messages, 0), "bytes": item.get(nbytes, 0)}
        for label, messages, nbytes in (
            ("queue-depth", "messages", "bytes"),
            ("total-enqueues", "messagesIn", "bytesIn"),
            ("total-dequeues", "messagesOut", "bytesOut"),
            ("discards-ttl-expired", "expired", ""),
            ("discards-subscriber-reject", "rejected", ""),
            ("discards-delivery-limit", "overLimit", ""),
        )
    ]
    click.echo()
    whole = Column("Messages", "messages", str, number=True), Column("Bytes", "bytes", count, number=True)
    show_table("Statistics:", (Column("Statistic", "statistic", text), *whole), statistics)
    levels = item.get("levels") or []
    if len(levels) > 1:
        click.echo()
        rows = [{"level": level, "messages": depth} for level, depth in reversed(list(enumerate(levels)))]
        show_table("Levels:", (Column("Level", "level", str, number=True), whole[0]), rows)


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
