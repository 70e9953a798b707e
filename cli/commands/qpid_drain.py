"""`qpid-drain`: moves everything on a broker that leaves to another one, and verifies that nothing is left.

It is one command, for a person and for a hook that runs before a broker is removed. It prints a line for each event,
with `--format json` as JSON, and a progress bar on a terminal. Its exit code gives the result (docs/reference/cli.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from broker.core import urls
from broker.options import nearest
from cli import endings, options
from cli.drain.drain import Drain, Result
from cli.drain.sides import Clock, OutOfTime, Side
from cli.output import count, note, say, show_json, shown
from cli.ranges import FloatRange

NAME = "qpid-drain"
MOST_END_BYTES = 4096
"""The longest termination message that Kubernetes keeps."""


@click.command(context_settings=options.CONTEXT)
@click.argument("words", nargs=-1, metavar="[status]")
@click.option("--from", "source", metavar="URL", help="Source: the broker to empty, or all brokers of its cluster.")
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Instead of --from: the store of a broker that is not running.",
)
@click.option("--delete-released", is_flag=True, help="With --store: delete the store when it is empty and released.")
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="URL",
    help="Target: the broker, or all brokers of its cluster. Repeat it to spread the queues over several targets.",
)
@click.option(
    "--end-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the last event to FILE, as JSON of at most 4 KiB: for the termination message of a pod.",
)
@click.option(
    "--cancel", is_flag=True, help="Cancel the drain: the source keeps the messages that have not moved, and serves again."
)
@click.option(
    "--check", is_flag=True, help="Print what would be created on the target and what does not fit there. Change nothing."
)
@click.option(
    "--deadline",
    type=FloatRange(0.1),
    metavar="SECONDS",
    help="End after this time even if messages are left (exit code 75).",
)
@click.option(
    "--spread",
    type=FloatRange(0, 3600),
    default=10.0,
    metavar="SECONDS",
    help="Disconnect the clients over this time, a tenth of them at each step. [10]",
)
@click.option("--rate", type=FloatRange(1), metavar="N", help="Maximum messages per second.")
@click.option(
    "--login-for",
    "others",
    multiple=True,
    metavar="URL",
    help="The login that is given is for the user in URL. This broker is not contacted.",
)
@partial(options.connection_options, without=("broker",))
@options.version_option(NAME)
def command(
    words: tuple[str, ...], source: str | None, targets: tuple[str, ...], others: tuple[str, ...], form: str, **given: Any
) -> None:
    """Empty a broker before it is removed: move all its queues to another broker, and verify that nothing is left.

    \b
    qpid-drain --from URL --to URL
        move all queues
    qpid-drain --from URL --to URL --check
        print what does not fit
    qpid-drain --store DIR --to URL
        drain a store without its broker
    qpid-drain --from URL --cancel
        cancel; the source serves the rest
    qpid-drain status --from URL
        print what is left

    From the start of a drain on, the source accepts no clients. Messages that have moved stay on the target.

    Run it again after a failure or a deadline to continue. No message is lost or repeated.
    """
    _check_status(words, given | {"to": targets})
    check, deadline_s, spread_s = given.pop("check"), given.pop("deadline"), given.pop("spread")
    rate = given.pop("rate")
    store, deletes, end_file = given.pop("store"), given.pop("delete_released"), given.pop("end_file")
    _must_make_sense(words, source, store, deletes=deletes)
    leaving, taking = _sides(source, targets, others, given)
    if words:
        _status(leaving, form)
        return
    if given.pop("cancel"):
        if check or deletes or end_file or deadline_s is not None or rate is not None:
            raise click.UsageError("--cancel goes with --from or --store, --to, and the options of a connection")
        _cancel(leaving, store, taking, form)
        return
    if not targets:
        raise click.UsageError("--to says which broker takes the messages")
    named = [name for target in taking for name in target.url.names]
    _check_names(leaving.url.names if source else (), named)

    if deletes and not check and _has_deleted_rest(store, form, end_file):
        return

    async def run(reactor: Any) -> tuple[Any, Result | None]:
        from twisted.internet.defer import ensureDeferred

        found: tuple[Any, Result | None]
        from cli.drain.orphan import Orphan

        clock = Clock(reactor, deadline_s)
        left = Side(clock, leaving, "broker that leaves") if store is None else Orphan(clock, leaving, store)
        sides = [Side(clock, target, "target") for target in taking]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        drain = Drain(clock, left, sides, _teller(form), spread_s=spread_s, now=now, rate=rate)
        try:
            if isinstance(left, Orphan):
                await left.start()
                if mark is not None and left.is_released(mark):
                    return None, Result(drain=str(mark["drain"]), empty=True, queues=list(mark["queues"]))
            if check:
                found = await drain.look(), None
            else:
                running = ensureDeferred(drain.run())
                if deadline_s is not None:
                    reactor.callLater(deadline_s, running.cancel)
                found = None, await running
                if isinstance(left, Orphan) and found[1] is not None and found[1].empty:
                    left.mark(found[1].drain, named, found[1].queues, now)
        finally:
            for side in sides:
                side.abort()
            if isinstance(left, Orphan):
                await left.close()
            else:
                left.abort()
        return found

    mark = _look(store)
    plan, result = _in_time(run)
    if deletes and result is not None and result.empty:
        _delete(store)
    if result is None:
        _show_plan(plan, form)
    else:
        _show_result(result, form, end_file)


def _must_make_sense(words: tuple[str, ...], source: str | None, store: Path | None, *, deletes: bool) -> None:
    """UsageError if the options do not say what to drain."""
    if words not in ((), ("status",)):
        raise click.UsageError(f"{' '.join(words)!r} is not a command; there is: status{nearest(' '.join(words), ['status'])}")
    if (source is None) == (store is None) or (words and store is not None):
        raise click.UsageError("give --from URL, or --store DIR and no command to name the source of the drain")
    if deletes and store is None:
        raise click.UsageError("--delete-released is for --store: a broker that runs keeps its store")


def _check_status(words: tuple[str, ...], given: dict[str, Any]) -> None:
    """UsageError for `status` with an option of a drain, which it would not follow."""
    wrong = [name for name in ("cancel", "check", "to", "end_file", "deadline", "rate") if given[name]]
    if words == ("status",) and wrong:
        raise click.UsageError(f"status takes no --{wrong[0].replace('_', '-')}")


def _sides(
    source: str | None, targets: tuple[str, ...], others: tuple[str, ...], given: dict[str, Any]
) -> tuple[options.Target, list[options.Target]]:
    """The source and the targets. A store needs no login: the options of a connection are for its targets. If only `others`
    have users, the options of a login are for none of them."""
    known = ("from", [source] if source is not None else []), ("to", list(targets)), ("login-for", list(others))
    beside = {name: urls for name, urls in known if urls}
    taking = [options.target(given | {"broker": url}, admin=True, name="to", beside=beside) for url in targets]
    if source is None:
        return taking[0] if taking else options.target(given | {"broker": "localhost"}, admin=True, name="to"), taking
    return options.target(given | {"broker": source}, admin=True, name="from", beside=beside), taking


def _cancel(leaving: options.Target, store: Path | None, named: list[options.Target], form: str) -> None:
    """Cancel the drain. If no targets are `named`, the broker's own record has their addresses (`_reached`)."""
    from cli.drain.call_off import Back, CallOff
    from cli.drain.orphan import Orphan

    _look(store)

    async def run(reactor: Any) -> Back:
        clock, targets = Clock(reactor, None), list[Side]()
        left = Side(clock, leaving, "broker that leaves") if store is None else Orphan(clock, leaving, store)
        try:
            if isinstance(left, Orphan):
                await left.start()
            (status,) = (await left.ask("QUERY", "drain"))["items"]
            if not status["leaving"]:
                return Back(back=int(status["messages"]))
            targets += [Side(clock, each, "target") for each in named]
            for each in () if named else _recorded(leaving, status["to"], status["sizes"]):
                await _reached(clock, each, targets)
            found = await CallOff(clock, left, targets, _teller(form)).run()
            if isinstance(left, Orphan):
                left.unmark()
            return found
        finally:
            for side in targets:
                side.abort()
            if isinstance(left, Orphan):
                await left.close()
            else:
                left.abort()

    found = endings.run(run)
    if form == "json":
        click.echo(json.dumps({"event": "end", "drain": found.drain, "moved": found.moved, "back": found.back}))
    elif found.drain:
        moved = "those that have moved" if found.moved is None else found.moved
        say(f"the broker serves again, with {found.back} messages; {moved} stay at the target")
    else:
        say(f"the broker does not leave; it has {found.back} messages")


def _recorded(leaving: options.Target, addresses: list[str], sizes: list[int]) -> list[options.Target]:
    """The targets of the broker's record, with the login and the encryption of the source; `sizes` has the number of addresses
    of each.
    """
    transport = leaving.url.addresses[0].transport
    rest = (replace(urls.parse(address).addresses[0], transport=transport) for address in addresses)
    return [leaving.at(*islice(rest, size)) for size in sizes or [len(addresses)]]


async def _reached(clock: Clock, target: options.Target, sides: list[Side]) -> None:
    """Add the side of a recorded target. Where the login and encryption of the source do not do, it may need neither: a password
    is never sent in the clear because of that. Unreachable.
    """
    bare = tuple(replace(address, transport=urls.TCP) for address in target.url.addresses)
    sides.append(Side(clock, target, "target"))
    try:
        await sides[-1].client()
    except endings.Unreachable as error:
        sides[-1] = Side(clock, replace(target, url=urls.Url(bare), mechanism=""), "target")
        try:
            await sides[-1].client()
        except endings.Unreachable:
            hint = "if its addresses have changed, or it needs another login or encryption, name it with --to"
            raise endings.Unreachable(f"{error}; {hint}") from None


def _check_names(leaving: tuple[str, ...], taking: list[str]) -> None:
    both = set(leaving) & set(taking)
    if both:
        raise click.UsageError(f"{', '.join(sorted(both))} is both the source and the target")
    if len(set(taking)) < len(taking):
        raise click.UsageError(
            "two of the --to name the same broker: give one for each target, with all brokers of a cluster in it"
        )


def _look(store: Path | None) -> dict[str, Any] | None:
    """Read the mark of a store that was released before."""
    if store is None:
        return None
    from cli.drain.orphan import look

    return look(store)


def _delete(store: Path) -> None:
    from cli.drain.orphan import delete

    delete(store)


def _has_deleted_rest(store: Path, form: str, end_file: Path | None) -> bool:
    """Go on with the deletion of a released store, if it was begun. Returns whether it was."""
    from cli.drain.orphan import delete_rest

    mark = delete_rest(store)
    if mark is None:
        return False
    told = json.dumps({"event": "deleted", "rest": str(store)})
    say(told if form == "json" else f"deleted: the rest of the released store in {store}")
    _show_result(Result(drain=str(mark["drain"]), empty=True, queues=list(mark["queues"])), form, end_file)
    return True


def _teller(form: str) -> Any:
    bar = sys.stderr.isatty() and form == "text"

    def tell(event: str, facts: dict[str, Any]) -> None:
        if form == "json":
            click.echo(json.dumps({"event": event} | facts))
        elif bar and event == "moving":
            done, left = int(facts["moved"]), int(facts["left"])
            filled = 30 * done // max(1, done + left)
            line = f"[{'#' * filled}{'.' * (30 - filled)}] {count(done)} moved, {count(left)} left, {facts['queue']}"
            click.echo(f"\r{shown(line)[:78]:78}", nl=False, err=True)
        elif event != "moving":
            told = ", ".join(f"{name} {', '.join(fact) if isinstance(fact, list) else fact}" for name, fact in facts.items())
            if bar and event == "empty":
                click.echo()
            say(f"{event}: {told}")

    return tell


def _status(target: options.Target, form: str) -> None:
    async def run(reactor: Any) -> dict[str, Any]:
        client = await target.connect(reactor)
        (item,) = await client.query("drain", None, target.timeout_s)
        await client.close()
        return item

    item = endings.run(run)
    if form == "json":
        show_json(item)
    elif not item["leaving"]:
        say(f"it does not leave; {item['messages']} messages, {item['clients']} clients")
    else:
        state = "released" if item["released"] else "empty" if item["empty"] else "leaving"
        left = f"{item['messages']} messages ({item['bytes']} bytes), {item['unsettled']} unsettled, {item['clients']} clients"
        say(f"{state} since {item['since'] or '?'}, to {', '.join(item['to'])}; left: {left}")


def _show_plan(plan: Any, form: str) -> None:
    if form == "json":

        def told(found: list[tuple[str, str]]) -> list[dict[str, str]]:
            return [{"what": what, "why": why} for what, why in found]

        creates = [{"type": type, "name": name} | body for type, name, body in plan.creates]
        show_json({"creates": creates, "problems": told(plan.problems), "stays": told(plan.stays), "goes": dict(plan.goes)})
    else:
        for type, name, body in plan.creates:
            say(f"to be made: {type} {name or ' '.join(str(body[field]) for field in ('exchange', 'queue', 'key'))}")
        for name, where in plan.goes:
            say(f"goes to {where}: queue {name}")
        for what, why in plan.problems:
            say(f"will not fit: {what}: {why}")
        for what, why in plan.stays:
            say(f"will stay: {what}: {why}")
        if not (plan.problems or plan.stays):
            click.echo("all of it will fit, as far as can be told beforehand")
    if plan.problems or plan.stays:
        sys.exit(endings.REFUSED)


def _show_result(result: Result, form: str, end_file: Path | None) -> None:
    refused = [{"queue": queue, "sequence": sequence or None, "why": why} for queue, sequence, why in result.refused]
    facts = {"drain": result.drain, "moved": result.moved, "left": result.left, "empty": result.empty, "refused": refused}
    if end_file is not None:
        _write_end(end_file, {"event": "end"} | facts, result.queues)
    if form == "json":
        click.echo(json.dumps({"event": "end"} | facts))
    else:
        for queue, sequence, why in result.refused:
            say(f"stays: queue {queue}, {f'message {sequence}' if sequence else 'the rest of it'}: {why}")
        end = "the broker is empty, and was released" if result.empty else f"{result.left} messages are left"
        say(f"{result.moved} messages moved; {'the time is over; ' if not result.in_time else ''}{end}")
    if not result.in_time:
        sys.exit(endings.UNFINISHED)
    if not result.empty:
        sys.exit(endings.REFUSED)


def _in_time(run: Callable[[Any], Coroutine[Any, Any, tuple[Any, Result | None]]]) -> tuple[Any, Result | None]:
    """Run it. A drain reports the end of its time in its result; this is for everything before it."""
    try:
        return endings.run(run)
    except OutOfTime:
        note(f"{NAME}: the time is over, and no message was moved")
        sys.exit(endings.UNFINISHED)


def _write_end(path: Path, facts: dict[str, Any], queues: list[dict[str, Any]]) -> None:
    """Write the last event, with the sums over all queues, and as many refused messages as fit."""
    sums = {"queues": len(queues), "messages": sum(int(each["moved"]) + int(each["known"]) for each in queues)}
    facts |= sums | {"bytes": sum(int(each["bytes"]) for each in queues), "refusals": len(facts["refused"])}
    while len(text := json.dumps(facts)) > MOST_END_BYTES:
        facts["refused"] = facts["refused"][: len(facts["refused"]) // 2]
    try:
        path.write_text(text)
    except OSError as error:
        raise endings.Refused(f"the last event cannot be written to {path}: {error.strerror}") from None


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
