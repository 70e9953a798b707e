"""`qpid-ha authority`, `pause`, `resume`, `tag`: settings of the cluster in its log (ha.core.cluster_settings).

Each command finds the primary by itself, and ends when a majority has the record. A setting applies to all cluster
managers until it is changed. It does not limit persons.
"""

from __future__ import annotations

from typing import Any

import click

from broker.core import urls
from cli import endings, options
from cli.commands.ha_cluster import ask, ha_command, primary_of, view_of
from cli.output import say, show_json
from ha.core.cluster_settings import MAX_PRIORITY

_PACEMAKER = "pacemaker"
"""The kind of the agent for Pacemaker, which is no plug-in of ours."""


def set_in_cluster(given: dict[str, Any], form: str, **body: Any) -> None:
    """Make the primary write this setting into the log."""
    target = options.target(given, admin=True)

    async def change(reactor: Any) -> dict[str, Any]:
        at, _ = await primary_of(target, reactor)
        return await ask(at, reactor, "SET", "ha", body)

    answer = endings.run(change)
    if form == "json":
        show_json(answer)


@ha_command("authority")
@click.argument("kind", required=False)
@click.option("--force", is_flag=True, help="Set a KIND that is not known here: the name of a plug-in.")
def authority(kind: str | None, force: bool, form: str, **given: Any) -> None:
    """Print or set which cluster managers may promote.

    KIND is builtin, etcd, kubernetes, pacemaker or the name of a plug-in. Daemons of other kinds only watch. With `hand` no
    daemon promotes; with `any`, the default, every kind may. A plug-in that is not installed here needs --force.
    """
    if kind is not None:
        if not force:
            _check_kind(kind)
        set_in_cluster(given, form, setting="authority", kind=kind)
        return
    target = options.target(given, admin=True)
    view = endings.run(lambda reactor: view_of(target, reactor))
    found = str((dict(view.get("settings") or {}).get("authority") or {}).get("kind") or "any")
    if form == "json":
        show_json({"kind": found})
    else:
        say(found)


def _check_kind(kind: str) -> None:
    """Refused if no cluster manager is known to be of this kind: all would watch, and nobody promotes a backup."""
    from ha.core.cluster_settings import ANY, HAND
    from resource_manager import arbiters

    known = [*arbiters.names(), _PACEMAKER, HAND, ANY]
    if kind not in known:
        raise endings.Refused(
            f"{kind!r} is not a known kind of cluster manager, and with a wrong one no backup is promoted; "
            f"the kinds are {', '.join(known)}; for a plug-in that is not installed here, give --force"
        )


@ha_command("pause")
@click.option("--reason", default="", metavar="TEXT", help="Reason that `qpid-ha query` shows.")
def pause(reason: str, form: str, **given: Any) -> None:
    """Stop all promotions by cluster managers until resume. Commands given by hand still work."""
    set_in_cluster(given, form, setting="pause", reason=reason)


@ha_command("resume")
def resume(form: str, **given: Any) -> None:
    """End the pause: cluster managers may promote again."""
    set_in_cluster(given, form, setting="resume")


@ha_command("tag")
@click.argument("address")
@click.option(
    "--priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    metavar="N",
    help="Among backups with equally new logs, the highest priority is promoted. [0]",
)
@click.option("--nofailover/--failover", default=None, help="Forbid or allow cluster managers to promote it.")
@click.option(
    "--site",
    metavar="NAME",
    help="Site of the broker. Among equal priorities, a broker of the failed primary's site is promoted.",
)
@click.option("--clear", is_flag=True, help="Remove all its tags first.")
def tag(
    address: str, priority: int | None, nofailover: bool | None, site: str | None, clear: bool, form: str, **given: Any
) -> None:
    """Set tags of the broker at ADDRESS. Tags that are not given stay as they are."""
    url = urls.parse(address)
    if len(url.addresses) != 1:
        raise click.UsageError("name one broker, host:port")
    changed = {"priority": priority, "nofailover": nofailover, "site": site}
    wanted = {name: value for name, value in changed.items() if value is not None}
    if not wanted and not clear:
        raise click.UsageError("give --priority, --nofailover, --failover, --site or --clear")
    target, name = options.target(given, admin=True), url.names[0]

    async def change(reactor: Any) -> dict[str, Any]:
        at, view = await primary_of(target, reactor)
        were = {} if clear else dict(dict(view.get("settings") or {}).get(f"tags:{name}") or {})
        return await ask(at, reactor, "SET", "ha", {"setting": "tags", "address": name, "tags": were | wanted})

    answer = endings.run(change)
    if form == "json":
        show_json(answer)
