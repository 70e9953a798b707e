"""`qpid-ha list`, `failover`, `stop`, `rolling-restart`: the state of a cluster, and operations on its brokers.

The listed state is fresh if a primary and, with it, a majority of the voters have just answered and report the same
epoch. Then no other primary can have served in a newer epoch. Otherwise the list is marked STALE, with the reason.
"""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import click

from broker.core import urls
from broker.core.urls import Address
from cli import endings, options
from cli.commands.ha_cluster import (
    address_of,
    again,
    ask,
    ask_to_promote,
    ha_command,
    hand_over,
    has_stopped,
    is_called,
    primary_of,
    views_of,
)
from cli.options import Target
from cli.output import Column, say, show_json, show_table, text
from cli.ranges import FloatRange

_LOOK_S = 0.1
_LEVEL = ("ready", "active")


@ha_command("list")
@click.option("-W", "--watch", is_flag=True, help="Refresh the table until interrupted.")
@click.option("--interval", type=FloatRange(0.1, 3600), default=2.0, metavar="SECONDS", help="Time between two refreshes. [2]")
def list_(watch: bool, interval: float, form: str, **given: Any) -> None:
    """Print all members: role, status, position, lag, tags.

    The table shows what the members answer now. A line that begins with STALE says why it may be out of date. --watch goes on
    when a broker is lost, also the one of -b.
    """
    target = options.target(given, admin=True)

    async def draw(reactor: Any) -> None:
        from twisted.internet.task import deferLater

        from broker.client import ClientError

        found = await views_of(target, reactor)
        _draw(found, form)
        asked, cluster = again(target, found)
        while watch:
            await deferLater(reactor, interval, lambda: None)
            try:
                found = await views_of(asked, reactor, cluster)
            except (ClientError, endings.Refused) as error:
                failed, found = str(error), []
            else:
                failed = ""
                asked, cluster = again(asked, found)
            if form == "text":
                click.clear()
            _draw(found, form, failed)

    endings.run(draw)


def _draw(views: list[dict[str, Any]], form: str, failed: str = "") -> None:
    """Print the members. `failed`: why no broker has answered."""
    stale, rows = failed or staleness(views), [_row(view, views) for view in views]
    if form == "json":
        show_json({"stale": stale, "members": rows})
        return
    columns = (
        Column("member", "member", text),
        Column("role", "role", text),
        Column("status", "status", text),
        Column("epoch", "epoch", text, number=True),
        Column("index", "index", text, number=True),
        Column("lag", "lag", text, number=True),
        Column("tags", "tags", text),
    )
    show_table("Members:", columns, rows)
    settings = _settings_of(views)
    if "pause" in settings:
        say(f"Paused since {settings['pause'].get('since')}: qpid-ha resume ends that")
    for view in views:
        if view.get("stopped"):
            say(f"{view['broker']} {has_stopped(view)}")
    if stale:
        say(f"STALE: {stale}")


def staleness(views: list[dict[str, Any]]) -> str:
    """Why these answers may be incomplete or out of date, or "". A broker outside a cluster has no primary to hear."""
    if all(view["status"] == "standalone" for view in views):
        return ""
    active = [view for view in views if view["status"] == "active"]
    if not active:
        return "no member says that it is the primary"
    primary = max(active, key=lambda view: int(view.get("epoch") or 0))
    voters = list(dict(primary.get("membership") or {}).get("voters") or [view["broker"] for view in views])
    newer = [view["broker"] for view in views if int(view.get("epoch") or 0) > int(primary.get("epoch") or 0)]
    if newer:
        return f"{', '.join(newer)} knows a newer epoch than the primary {primary['broker']}"
    agreeing = {view["broker"] for view in views if view.get("epoch") == primary.get("epoch") and view["broker"] in voters}
    if 2 * len(agreeing) <= len(voters):
        return f"{len(agreeing)} of {len(voters)} voters answer and are in the primary's epoch: no majority"
    return ""


def _settings_of(views: list[dict[str, Any]]) -> dict[str, Any]:
    newest = max(views, key=lambda view: int(view.get("appliedIndex") or 0), default={})
    return dict(newest.get("settings") or {})


def _row(view: dict[str, Any], views: list[dict[str, Any]]) -> dict[str, Any]:
    primary = next((each for each in views if each["status"] == "active"), {})
    seen: dict[str, Any] = next((each for each in primary.get("members") or [] if each.get("address") == view["broker"]), {})
    tags = dict(_settings_of(views).get(f"tags:{view['broker']}") or {})
    lag = seen.get("lagRecords", "")
    return {
        "member": view["broker"],
        "role": str(seen.get("role") or ""),
        "status": view["status"] or view.get("error", ""),
        "stopped": view.get("stopped", ""),
        "epoch": view.get("epoch", ""),
        "index": view.get("lastIndex", ""),
        "lag": "" if lag == -1 else lag,
        "tags": ", ".join(name if value is True else f"{name}={value}" for name, value in sorted(tags.items())),
    }


@ha_command("failover")
@click.option("--candidate", metavar="BROKER", help="Broker to promote. Default: the one with the newest log.")
def failover(candidate: str | None, form: str, **given: Any) -> None:
    """Promote a backup when there is no primary.

    The broker with the newest log is asked first, then the next one. Refused while a primary serves: use switchover.
    """
    from broker.client import ManagementError

    target = options.target(given, admin=True)
    chosen = urls.parse(candidate).names if candidate is not None else ()
    if len(chosen) > 1:
        raise click.UsageError("--candidate takes one broker")

    async def change(reactor: Any) -> tuple[str, dict[str, Any]]:
        found = await views_of(target, reactor)
        serving = [view["broker"] for view in found if view["status"] == "active"]
        if serving:
            raise endings.Refused(f"{serving[0]} is the primary and serves: use qpid-ha switchover")
        able = [
            view
            for view in found
            if view["status"] in ("joining", "catchup", "ready")
            and not view.get("witness")
            and all(is_called(view, name) for name in chosen)
        ]
        able.sort(key=lambda view: (-int(view.get("lastEpoch") or 0), -int(view.get("lastIndex") or 0), view["broker"]))
        refusals = [f"{view['broker']} ({view['status'] or view['error']})" for view in found if view not in able]
        for view in able:
            try:
                return view["broker"], await ask_to_promote(target.at(address_of(view)), reactor, "qpid-ha failover")
            except ManagementError as error:
                refusals.append(f"{view['broker']} ({error})")
        raise endings.Refused(f"no broker could be promoted: {', '.join(refusals)}")

    name, answer = endings.run(change)
    if form == "json":
        show_json({"broker": name} | answer)
    else:
        say(f"{name} is active in epoch {answer.get('epoch', '?')}")


@ha_command("stop")
@click.option("--force", is_flag=True, help="Stop it even if the other brokers are not a majority.")
def stop(force: bool, form: str, **given: Any) -> None:
    """Shut down the broker of -b. A primary hands over first.

    Refused without --force when the cluster would be without a majority.
    """
    target = options.target(given, admin=True)
    if len(target.url.addresses) != 1:
        raise click.UsageError("name the one broker to stop with -b")
    endings.run(lambda reactor: ask(target, reactor, "STOP", "ha", {"force": force}))
    if form == "json":
        show_json({"broker": target.url.names[0], "done": True})


@ha_command("rolling-restart")
@click.option(
    "--command",
    "how",
    metavar="COMMAND",
    help="Command that restarts a broker, with {host}, {port} or {address} for it. Default: stop it; its supervisor starts it.",
)
@click.option(
    "--wait", type=FloatRange(0.1, 86_400), default=300.0, metavar="SECONDS", help="Time for a broker to come back. [300]"
)
def rolling_restart(how: str | None, wait: float, form: str, **given: Any) -> None:
    """Restart all brokers in turn, the primary last.

    The primary hands over first. Nothing is restarted while a broker is down. Each broker must be back and caught up before the
    next one is restarted; else the command stops.
    """
    target = options.target(given, admin=True)
    if how is not None:
        _words_of(how, target.url.addresses[0])  # a wrong one is refused before a broker is touched
    restarted: list[str] = []

    async def restart(reactor: Any) -> None:
        at, primary = await primary_of(target, reactor)
        names = [str(member["address"]) for member in primary.get("members") or []]
        own = str(primary.get("address"))
        everyone = {address.name: address for address in urls.parse(str(primary.get("brokersUrl"))).addresses}
        await _all_there(at, reactor)
        for name in [*(name for name in names if name != own), own]:
            await _all_level(at, reactor, wait)
            if name == own:
                taker, _ = await hand_over(at, reactor, None, "rolling restart")
                at = target.at(taker)
                await _all_level(at, reactor, wait)
            await _restart(target.at(everyone[name]), reactor, how, wait)
            restarted.append(name)
            if form == "text":
                say(f"{name} restarted")
        await _all_level(at, reactor, wait)

    endings.run(restart)
    if form == "json":
        show_json({"restarted": restarted})


async def _all_level(at: Target, reactor: Any, wait_s: float) -> None:
    """Wait until every member has caught up."""
    from twisted.internet.task import deferLater

    until_s = reactor.seconds() + wait_s
    while behind := _behind(await views_of(at, reactor)):
        if reactor.seconds() >= until_s:
            told = ", ".join(f"{name} ({why})" for name, why in behind.items())
            raise endings.Refused(
                f"{told} has not caught up with the primary after {wait_s:g} s; the other brokers are not restarted"
            )
        await deferLater(reactor, _LOOK_S, lambda: None)


async def _all_there(at: Target, reactor: Any) -> None:
    """Refused if a member is down, or has stopped applying its log."""
    for view in await views_of(at, reactor):
        why = view.get("error") or (has_stopped(view) if view.get("stopped") else "")
        if why:
            raise endings.Refused(
                f"{view['broker']} {'is not there: ' if view.get('error') else ''}{why}; no broker is restarted. "
                f"Start it again, or remove it (qpid-ha remove-broker {view['broker']})"
            )


def _behind(views: list[dict[str, Any]]) -> dict[str, str]:
    """The members that have not caught up, each with the reason. The member itself must say so too: a primary may take a broker
    that was restarted for `ready` until it notices that the former connection is lost."""
    primary = max(
        (view for view in views if view["status"] == "active"), key=lambda view: int(view.get("epoch") or 0), default=None
    )
    if primary is None:
        return {view["broker"]: view.get("error") or view["status"] for view in views}
    said = {view["broker"]: view for view in views}
    behind = {}
    for member in primary.get("members") or []:
        name = str(member["address"])
        view = said.get(name, {})
        own = "ready" if view.get("witness") and not view.get("error") else view.get("status")
        if view.get("error") or view.get("stopped"):
            behind[name] = str(view.get("error") or has_stopped(view))
        elif own not in _LEVEL or member.get("state") not in _LEVEL:
            behind[name] = str(own if own not in _LEVEL else member.get("state") or "not connected to the primary")
    return behind


def _words_of(how: str, address: Address) -> list[str]:
    """The words of the command for this broker. UsageError if they cannot be read."""
    try:
        words = [word.format(host=address.host, port=address.port, address=address.name) for word in shlex.split(how)]
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise click.UsageError(
            f"--command {how!r} cannot be read ({error}); "
            "write {host}, {port} or {address} for the broker, and {{ and }} for braces"
        ) from None
    if not words:
        raise click.UsageError("--command is empty: leave it out if a supervisor starts the broker again")
    return words


async def _restart(target: Target, reactor: Any, how: str | None, wait_s: float) -> None:
    from twisted.internet.task import deferLater
    from twisted.internet.threads import deferToThread

    from broker.client import ClientError

    (address,) = target.url.addresses
    uptime_s = await _uptime(target, reactor)
    began_s = reactor.seconds()
    if how is None:
        await ask(target, reactor, "STOP", "ha", {})
    else:
        words = _words_of(how, address)
        try:
            ran = await deferToThread(subprocess.run, words, capture_output=True, text=True, check=False)
        except OSError as error:
            raise endings.Refused(f"cannot run {words[0]}: {error.strerror or error}; no other broker is restarted") from None
        if ran.returncode:
            said = (ran.stderr or ran.stdout).strip().splitlines() or ["it said nothing"]
            raise endings.Refused(f"{shlex.join(words)} ended with {ran.returncode}: {said[-1]}")
    while True:
        state = "is not back"
        try:
            if await _uptime(target, reactor) < uptime_s + reactor.seconds() - began_s - _LOOK_S:
                return
            state = "runs as before and was not restarted"
        except ClientError:
            pass
        if reactor.seconds() - began_s >= wait_s:
            raise endings.Refused(f"{address.name} {state} after {wait_s:g} s; the other brokers are not restarted")
        await deferLater(reactor, _LOOK_S, lambda: None)


async def _uptime(target: Target, reactor: Any) -> float:
    items = (await ask(target, reactor, "QUERY", "broker")).get("items") or [{}]
    return float(items[0].get("uptime_s") or 0.0)
