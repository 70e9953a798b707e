"""`qpid-ha authority`, `pause`, `resume`, `tag`: what the cluster agrees on in its log (ha.core.cluster_settings).

Each finds the primary by itself, and ends when a majority has the record. It binds cluster managers, all of them and for good,
until it is changed; it binds no person.
"""

from __future__ import annotations

from typing import Any

import click

from broker.core import urls
from cli import endings, options
from cli.commands.ha_cluster import ask, ha_command, primary_of, view_of
from cli.output import show_json


def set_in_cluster(given: dict[str, Any], form: str, **body: Any) -> None:
    """Have the primary put this setting into the log."""
    target = options.target(given, admin=True)

    async def change(reactor: Any) -> dict[str, Any]:
        at, _ = await primary_of(target, reactor)
        return await ask(at, reactor, "SET", "ha", body)

    answer = endings.run(change)
    if form == "json":
        show_json(answer)


@ha_command("authority")
@click.argument("kind", required=False)
def authority(kind: str | None, form: str, **given: Any) -> None:
    """Print or set which kind of cluster manager may promote brokers.

    KIND is builtin, etcd, kubernetes, pacemaker or a plug-in's name: daemons of other kinds watch, and say so. `hand`: none acts.
    `any`: whichever there is acts, as in a new cluster.
    """
    if kind is not None:
        set_in_cluster(given, form, setting="authority", kind=kind)
        return
    target = options.target(given, admin=True)
    view = endings.run(lambda reactor: view_of(target, reactor))
    found = str((dict(view.get("settings") or {}).get("authority") or {}).get("kind") or "any")
    if form == "json":
        show_json({"kind": found})
    else:
        click.echo(found)


@ha_command("pause")
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever asks meanwhile.")
def pause(reason: str, form: str, **given: Any) -> None:
    """Let no cluster manager promote a broker until `resume`, whatever fails. What is asked for by hand is done."""
    set_in_cluster(given, form, setting="pause", reason=reason)


@ha_command("resume")
def resume(form: str, **given: Any) -> None:
    """End a pause."""
    set_in_cluster(given, form, setting="resume")


@ha_command("tag")
@click.argument("address")
@click.option("--priority", type=int, help="Among backups with equally new logs the highest is promoted. [0]")
@click.option("--nofailover/--failover", default=None, help="Whether cluster managers never promote it.")
@click.option("--site", metavar="NAME", help="Where it stands: of equal priority, the failed primary's site is preferred.")
@click.option("--clear", is_flag=True, help="Take all tags off first.")
def tag(
    address: str, priority: int | None, nofailover: bool | None, site: str | None, clear: bool, form: str, **given: Any
) -> None:
    """Set the tags of the broker at ADDRESS; those that are not named stay."""
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
