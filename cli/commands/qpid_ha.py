"""`qpid-ha`: shows the state of a cluster, and changes its primary and members.

A command connects to the broker of -b, which may be a backup; with several addresses, to the primary among them. `--all` asks
every member. The brokers' votes decide a promotion, so it cannot lose data. Only `bootstrap --force` and `takeover --force` can
give data up, and both say so.
"""

from __future__ import annotations

from typing import Any

import click

from broker.core import urls
from broker.options import nearest
from cli import endings, options
from cli.commands import ha_members, ha_operations, ha_settings, ha_sites, ha_stores
from cli.commands.ha_cluster import (
    NAME,
    REACHED,
    ask,
    ask_to_promote,
    command,
    ha_command,
    hand_over,
    has_stopped,
    view_of,
    views_of,
)
from cli.output import Column, note, say, show_json, show_table, text

STATUSES = ("joining", "catchup", "ready", "recovering", "active", "standalone", "removed")


@ha_command("ping")
def ping(form: str, **given: Any) -> None:
    """Check that the broker answers."""
    target = options.target(given, admin=True)
    view = endings.run(lambda reactor: view_of(target, reactor))
    if form == "json":
        show_json({"broker": str(target.url), "alive": True, "status": view.get("status")})


@ha_command("status")
@click.option("--expect", type=click.Choice(STATUSES), help="Exit with code 1 unless the broker has this status.")
@click.option("--is-primary", is_flag=True, help="Exit with code 1 unless the broker is the primary.")
@click.option("--all", "everyone", is_flag=True, help="Ask every member of the cluster.")
def status(expect: str | None, is_primary: bool, everyone: bool, form: str, **given: Any) -> None:
    """Print the status of the broker. The status is joining, catchup, ready, recovering, active, standalone or removed.

    A broker that is ready but has stopped applying the log cannot take over: stderr says why, and --expect ready fails.
    """
    if (expect is not None) + is_primary + everyone > 1:
        raise click.UsageError("--expect, --is-primary and --all exclude each other")
    target = options.target(given, admin=True)
    if everyone:
        _show_all(endings.run(lambda reactor: views_of(target, reactor)), form)
        return
    view = endings.run(lambda reactor: view_of(target, reactor))
    found = str(view.get("status"))
    remarks = {name: str(view[name]) for name in ("reason", "notice", "stopped") if view.get(name)}
    if expect == found == "ready" and "stopped" in remarks:
        raise endings.Refused(f"the broker is ready, but {has_stopped(view)}")
    if form == "json":
        show_json({"status": found} | remarks)
    elif not is_primary:
        say(found)
        for name, remark in remarks.items():
            note(f"{NAME}: {has_stopped(view) if name == 'stopped' else remark}")
    if expect is not None and found != expect:
        raise endings.Refused(f"the broker is {found}, not {expect}")
    if is_primary and found not in ("active", "recovering"):
        raise endings.Refused(f"the broker is {found}, not the primary")


def _show_all(views: list[dict[str, Any]], form: str) -> None:
    """Print a line for each member; exit code 3 if one of them cannot be reached."""
    if form == "json":
        fields = {"status": "", "error": "", "stopped": ""}
        show_json([{"broker": view["broker"]} | {name: view.get(name, fields[name]) for name in fields} for view in views])
    else:
        for view in views:
            say(f"{view['broker']} {view['status'] or view['error']}")
        for view in views:
            if view.get("stopped"):
                note(f"{NAME}: {view['broker']} {has_stopped(view)}")
    if any("error" in view for view in views):
        raise click.exceptions.Exit(endings.UNREACHABLE)


@ha_command("query")
@click.option("--all", "everyone", is_flag=True, help="Ask every member of the cluster.")
def query(everyone: bool, form: str, **given: Any) -> None:
    """Print the broker's HA settings and position. On the primary, also print the lag of each backup."""
    target = options.target(given, admin=True)
    if everyone:
        views = endings.run(lambda reactor: views_of(target, reactor))
    else:
        views = [endings.run(lambda reactor: view_of(target, reactor))]
    if form == "json":
        told = [{name: value for name, value in view.items() if name != REACHED} for view in views]
        show_json(told if everyone else told[0])
    else:
        for view in views:
            _show_view(view, everyone)
    if any("error" in view for view in views):
        raise click.exceptions.Exit(endings.UNREACHABLE)


def _show_view(view: dict[str, Any], named: bool) -> None:
    if named:
        say(view["broker"])
    if "error" in view:
        say(f"  {view['error']}")
        return
    fields = (
        ("Status", "status"),
        ("Reason", "reason"),
        ("Notice", "notice"),
        ("Broker ID", "brokerId"),
        ("Brokers URL", "brokersUrl"),
        ("Public URL", "publicUrl"),
        ("Replicate", "replicateDefault"),
        ("Primary", "primary"),
        ("Epoch", "epoch"),
        ("Index", "lastIndex"),
        ("Committed", "commitIndex"),
        ("Version", "version"),
        ("Version here", "versionHere"),
        ("Begun", "begun"),
    )
    for label, field in fields:
        if field in view and (field not in ("reason", "notice", "begun") or view[field]):
            say(f"{'  ' if named else ''}{label + ':':<20} {view[field]}".rstrip())
    for label, told in _settings_told(dict(view.get("settings") or {})):
        say(f"{'  ' if named else ''}{label + ':':<20} {told}")
    for label, field in (("Stopped", "stopped"), ("Disk", "disk")):
        if view.get(field):
            say(f"{'  ' if named else ''}{label + ':':<20} {view[field]}")
    for member in view.get("members") or []:
        if member.get("refused"):
            what = "Cannot catch up:" if member.get("connected") else "No link:"
            say(f"{'  ' if named else ''}{what:<20} {member['address']}: {member['refused']}")
    if view.get("status") in ("active", "recovering"):
        columns = (
            Column("member", "address", text),
            Column("role", "role", text),
            Column("state", "state", text),
            Column("connected", "connected", lambda value: "yes" if value else "no"),
            Column("index", "ackedIndex", text, number=True),
            Column("lag", "lagRecords", text, number=True),
            Column("lagBytes", "lagBytes", text, number=True),
            Column("lagMs", "lagMs", lambda value: f"{float(value or 0):.0f}", number=True),
        )
        show_table("Lag:", columns, view.get("members") or [])


def _settings_told(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """The settings of the cluster, for people."""
    told = []
    if "authority" in settings:
        told.append(("Authority", str(settings["authority"].get("kind"))))
    if "pause" in settings:
        pause = settings["pause"]
        told.append(("Paused", f"since {pause.get('since')}" + (f": {pause['reason']}" if pause.get("reason") else "")))
    if "switchover" in settings:
        plan = settings["switchover"]
        told.append(("Switchover", f"{plan.get('at')}" + (f" to {plan['candidate']}" if plan.get("candidate") else "")))
    for key in sorted(key for key in settings if key.startswith("tags:")):
        tags = ", ".join(name if value is True else f"{name}={value}" for name, value in sorted(settings[key].items()))
        told.append(("Tags", f"{key.removeprefix('tags:')} {tags}"))
    return told


def _show_promoted(answer: dict[str, Any], broker: str, form: str) -> None:
    if form == "json":
        show_json({"broker": broker} | answer)
    else:
        took = f" in {float(answer['duration_ms']):.0f} ms" if "duration_ms" in answer else ""
        say(f"{broker} is {answer.get('status', 'active')} in epoch {answer.get('epoch', '?')}{took}")


@ha_command("promote")
@click.option("--cluster-manager", is_flag=True, help="Accepted for old scripts. It changes nothing.")
@click.option(
    "--manager", metavar="KIND", default="", help="Ask as a cluster manager of this kind: pause, authority and limits apply."
)
def promote(cluster_manager: bool, manager: str, form: str, **given: Any) -> None:
    """Make the broker the primary.

    A healthy primary waits until this broker has caught up and then hands over without loss. When there is no primary and
    another broker has a newer log, that broker is elected first and hands over. The command fails when no majority of the
    brokers can be reached, or when this broker does not catch up. The error names the brokers that are not reached, or says how
    far this one is behind.
    """
    target = options.target(given, admin=True)
    if len(target.url.addresses) != 1:
        raise click.UsageError("name the one broker to promote with -b, or use switchover")

    async def change(reactor: Any) -> dict[str, Any]:
        from broker.client import ConnectError, Denied

        try:
            return await ask_to_promote(target, reactor, f"{manager or 'qpid-ha'} promote", manager)
        except ConnectError as error:
            if isinstance(error, Denied):
                raise
            raise ConnectError(
                f"{error}; to promote another broker, use qpid-ha failover, and name all brokers with -b"
            ) from None

    answer = endings.run(change)
    _show_promoted(answer, target.url.names[0], form)


@ha_command("bootstrap")
@click.option("--force", is_flag=True, help="Begin, and give up any data on members that do not answer.")
def bootstrap(force: bool, form: str, **given: Any) -> None:
    """Begin a new cluster while members are missing.

    A new cluster begins by itself when all its brokers are up. A missing broker may hold the cluster's messages, so no broker is
    elected without it. Without --force this prints which brokers would be given up, and does nothing. With --force the broker
    asks every member; if a majority answers, and none of them holds data, it becomes the primary of a new cluster. What the
    silent ones hold is then lost to it: they are refused when they come back, until their data folders are emptied.
    """
    target = options.target(given, admin=True)
    if len(target.url.addresses) != 1:
        raise click.UsageError("name the one broker to begin with: -b")
    answer = endings.run(lambda reactor: ask(target, reactor, "BOOTSTRAP", "ha", {"force": force}))
    _show_promoted(answer, target.url.names[0], form)


def _must_be_a_time(text: str) -> None:
    from ha.core.cluster_settings import BadSetting, moment

    try:
        moment(text)
    except BadSetting as error:
        raise click.UsageError(f"--scheduled: {error}") from None


@ha_command("switchover")
@click.option("--candidate", metavar="BROKER", help="Backup that takes over. Default: the ready backup with the newest log.")
@click.option("--scheduled", metavar="TIME", help="Switch over at this time, as in 2026-01-31T04:00:00Z.")
@click.option("--cancel", is_flag=True, help="Cancel the scheduled switchover.")
def switchover(candidate: str | None, scheduled: str | None, cancel: bool, form: str, **given: Any) -> None:
    """Hand over from the primary to a backup as planned. No message is lost."""
    chosen = urls.parse(candidate) if candidate is not None else None
    if chosen is not None and len(chosen.addresses) != 1:
        raise click.UsageError("--candidate takes one broker")
    if scheduled is not None and cancel:
        raise click.UsageError("--scheduled and --cancel exclude each other")
    if scheduled is not None:
        _must_be_a_time(scheduled)
    if scheduled is not None or cancel:
        ha_settings.set_in_cluster(
            given, form, setting="switchover", at=scheduled or "", candidate=chosen.names[0] if chosen else ""
        )
        return
    target = options.target(given, admin=True)

    async def change(reactor: Any) -> tuple[str, dict[str, Any]]:
        address, answer = await hand_over(target, reactor, chosen.addresses[0] if chosen else None, "planned switchover")
        return address.name, answer

    name, answer = endings.run(change)
    _show_promoted(answer, name, form)


@command.command("replicate", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("queue", required=False)
@click.argument("remote", required=False)
def replicate(queue: str | None, remote: str | None) -> None:
    """Refused: queues are not replicated one by one. Use qpid-route."""
    raise click.UsageError(options.NO_REPLICATION)


@ha_command("history")
def history(form: str, **given: Any) -> None:
    """Print every primary so far: when it took over, and why."""
    target = options.target(given, admin=True)
    items = list(endings.run(lambda reactor: ask(target, reactor, "QUERY", "history")).get("items") or [])
    if form == "json":
        show_json(items)
        return
    for item in items:
        known = isinstance(item.get("gap_ms"), int | float) and item["gap_ms"] >= 0
        item["asked"] = f"{item.get('by') or ''}{' (planned)' if item.get('planned') else ''}".strip()
        item["gap"] = f"{'~' if item.get('estimated') else ''}{item['gap_ms']:.0f}" if known else ""
    columns = (
        Column("time", "ts", text),
        Column("epoch", "epoch", text, number=True),
        Column("primary", "primary", text),
        Column("gapMs", "gap", text, number=True),
        Column("by", "asked", text),
        Column("reason", "reason", text),
    )
    show_table("Primaries:", columns, items)


@command.command("help")
@click.argument("name", required=False, type=str)
@click.pass_context
def help_(context: click.Context, name: str | None) -> None:
    """Print the help of one command, or list all commands."""
    parent = context.parent
    assert parent is not None
    if name is None:
        click.echo(parent.get_help())
        return
    found = command.commands.get(name)
    if found is None:
        there_are = f"there are: {', '.join(command.commands)}{nearest(name, command.commands)}"
        raise click.UsageError(f"there is no command {name!r}; {there_are}")
    click.echo(click.Context(found, info_name=name, parent=parent).get_help())


@command.command("help-all")
@click.pass_context
def help_all(context: click.Context) -> None:
    """Print the help of every command."""
    parent = context.parent
    assert parent is not None
    texts = [click.Context(one, info_name=name, parent=parent).get_help() for name, one in command.commands.items()]
    click.echo("\n\n".join([parent.get_help(), *texts]))


__all__ = ["command", "ha_members", "ha_operations", "ha_settings", "ha_sites", "ha_stores", "main"]


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
