"""`qpid-ha switch-site`: moves the primary and the votes from one site to another. `takeover`: for the case that the
first site is lost.

The brokers of the second site are learners that stay learners, and have the tag `site`. They become voters, one after
the other. One of them takes over. The voters of the first site become learners. Each step changes one member, and the
cluster commits it before the next step. Steps that are already done are skipped, so an interrupted command can be run
again.
"""

from __future__ import annotations

from typing import Any

import click

from cli import endings, options
from cli.commands.ha_cluster import address_of, ask, ask_to_promote, ha_command, primary_of, view_of, views_of
from cli.commands.ha_members import settled, wait_for_role
from cli.options import Target
from cli.output import say, show_json
from cli.ranges import FloatRange

SAFE_VOTERS = 3


@ha_command("switch-site")
@click.argument("site")
@click.option("--force", is_flag=True, help="Do it even if the site has too few brokers to lose one.")
@click.option(
    "--wait", type=FloatRange(0.1, 86_400), default=600.0, metavar="SECONDS", help="Time for a broker to catch up. [600]"
)
def switch_site(site: str, force: bool, wait: float, form: str, **given: Any) -> None:
    """Move the primary and the votes to another site.

    SITE is the value of the tag `site` of the brokers there (qpid-ha tag, add-broker --site). The learners of SITE become
    voters, one of them takes over by a planned switchover, and then the voters of other sites become learners. A witness stays a
    witness.
    """
    target = options.target(given, admin=True)

    async def change(reactor: Any) -> str:
        at, view = await primary_of(target, reactor)
        coming = _of_site(view, site, force)
        for address in coming:
            if _roles(view)[address] == "learner":
                await _vote(at, reactor, address, wait)
        await _serve(target, reactor, coming)
        at, view = await primary_of(target, reactor)
        for address, role in _roles(view).items():
            if role == "voter" and address not in coming:
                await settled(at, reactor)
                await ask(at, reactor, "SET-ROLE", "ha", {"address": address, "role": "learner", "force": force})
                await wait_for_role(at, reactor, address, "learner", wait)
        return str(view.get("address"))

    primary = endings.run(change)
    if form == "json":
        show_json({"site": site, "primary": primary})
    else:
        say(f"{primary} of site {site} is the primary; the other sites follow")


@ha_command("takeover")
@click.option("--force", is_flag=True, help="Do it. Without --force the command only prints what would be given up.")
def takeover(force: bool, form: str, **given: Any) -> None:
    """Begin a new cluster after the first site is lost. The broker of -b becomes its primary.

    The broker takes over without an election. Messages that the lost brokers accepted and this broker never received are given
    up; the command prints how far its log goes. If -b names several brokers, the one with the newest log is used. Brokers of the
    old cluster cannot join the new one.
    """
    target = options.target(given, admin=True)

    async def ask_newest(reactor: Any) -> tuple[str, dict[str, Any]]:
        views = {one: await view_of(one, reactor) for one in target.each()}
        best = max(views, key=lambda one: (int(views[one].get("lastEpoch") or 0), int(views[one].get("lastIndex") or 0)))
        return str(views[best].get("address")), await ask(best, reactor, "TAKEOVER", "ha", {"force": force})

    broker, answer = endings.run(ask_newest)
    told = dict(answer.get("lineage") or {})
    if form == "json":
        show_json({"broker": broker} | answer)
    else:
        say(f"{broker} is active in epoch {answer.get('epoch', '?')} of the new cluster {told.get('cluster', '?')}")
        say(f"begun {told.get('begun', '')}")


def _roles(view: dict[str, Any]) -> dict[str, str]:
    return {str(member["address"]): str(member["role"]) for member in view.get("members") or []}


def _of_site(view: dict[str, Any], site: str, force: bool) -> list[str]:
    """The brokers of this site that store messages. Refused if they could not serve, or, without `force`, could not
    lose one broker.
    """
    settings = dict(view.get("settings") or {})
    sites = {address: str(dict(settings.get(f"tags:{address}") or {}).get("site") or "") for address in _roles(view)}
    coming = [address for address, role in _roles(view).items() if sites[address] == site and role != "witness"]
    if not coming:
        known = ", ".join(sorted({each for each in sites.values() if each})) or "none"
        raise endings.Refused(f"no broker of site {site} is a member; sites that have brokers: {known} (qpid-ha tag --site)")
    voters = len(coming) + ("witness" in _roles(view).values())
    if voters < SAFE_VOTERS and not force:
        count, loss = (f"{voters} voting members", "the loss of one of them") if voters > 1 else ("one voting member", "its loss")
        raise endings.Refused(
            f"site {site} would have {count} ({', '.join(coming)}), and {loss} stops the cluster; add brokers there, "
            "or use --force"
        )
    away = [
        str(member["address"]) for member in view.get("members") or [] if member["address"] in coming and not member["connected"]
    ]
    if away:
        raise endings.Refused(f"{', '.join(away)} of site {site} is not connected to the primary")
    return coming


async def _vote(at: Target, reactor: Any, address: str, wait_s: float) -> None:
    """Give this learner a vote."""
    view = await view_of(at, reactor)
    await settled(at, reactor)
    if address in (dict(view.get("membership") or {}).get("standby") or ()):
        await ask(at, reactor, "SET-ROLE", "ha", {"address": address, "role": "voter"})
    await wait_for_role(at, reactor, address, "voter", wait_s)


async def _serve(target: Target, reactor: Any, coming: list[str]) -> None:
    """Make one of these brokers the primary, unless one of them is."""
    views = [view for view in await views_of(target, reactor) if view["broker"] in coming]
    if any(view["status"] == "active" for view in views):
        return
    ready = sorted(
        (view for view in views if view["status"] == "ready" and not view.get("stopped")),
        key=lambda view: (-int(view["lastIndex"]), view["broker"]),
    )
    if not ready:
        told = ", ".join(f"{view['broker']} is {view['status'] or view['error']}" for view in views)
        raise endings.Refused(f"no broker of the site is ready to take over: {told}")
    await ask_to_promote(target.at(address_of(ready[0])), reactor, "qpid-ha switch-site")
