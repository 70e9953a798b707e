"""The common part of the commands of `qpid-ha`: their group, questions to brokers, and the choice of the next primary.

A command is made with `ha_command`. It asks one broker (`view_of`), every member (`views_of`), or finds the primary
(`primary_of`).

A view is called by the name that the broker has among the members (`broker`), not by the one with which the user reached it.
`REACHED` is the address at which it answered, which may be an alias of it or a tunnel.

Invariant: a command that is given one broker shows and changes no cluster but that of this broker. Its list of brokers may name
brokers of another cluster, as after a takeover by a second site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from broker.core import urls
from cli import endings, options
from cli.options import Target

NAME = "qpid-ha"
REACHED = "reached"
"""Key of the address at which a broker has answered, in its view; for the commands only."""


class AnyOrder(click.Group):
    """A group whose commands also accept their options before their name, as in `qpid-ha -b host:port status`. Like
    Apache Qpid's qpid-ha, it uses the first word that is the name of a command as the command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command first."""
        at = next((at for at, word in enumerate(args) if word in self.commands), len(args))
        if at and args[0].startswith("-") and not {"--help", "-h", "--version"} & set(args[:at]):
            if at == len(args):
                known = {
                    name
                    for each in self.commands.values()
                    for option in each.params
                    for name in (*option.opts, *option.secondary_opts)
                }
                names = (word.partition("=")[0] if word.startswith("--") else word[:2] for word in args if word[:1] == "-")
                unknown = next((name for name in names if len(name) > 1 and name not in known), "")
                if unknown:
                    raise click.NoSuchOption(unknown, ctx=ctx)
                raise click.UsageError(f"name a command: {', '.join(sorted(self.commands))}")
            args = [args[at], *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)


@click.group(cls=AnyOrder, context_settings=options.CONTEXT)
@options.version_option(NAME)
def command() -> None:
    """Show the state of a cluster of brokers, and change its primary and its members."""


def ha_command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command that talks to a broker."""

    def make(function: Callable[..., Any]) -> click.Command:
        return command.command(name)(options.connection_options(function))

    return make


async def ask(target: Target, reactor: Any, operation: str, type: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request over its own connection."""
    client = await target.connect(reactor)
    answer = await client.request(operation, type, body=body, timeout_s=target.timeout_s)
    await client.close()
    return answer


async def view_of(target: Target, reactor: Any) -> dict[str, Any]:
    """The broker's description of itself."""
    items = (await ask(target, reactor, "QUERY", "ha")).get("items") or [{}]
    return dict(items[0])


async def _the_only_view(target: Target, reactor: Any) -> dict[str, Any]:
    """The description that the only broker of the target gives of itself, and of its cluster."""
    from broker.client import ConnectError, Denied, TimedOut

    try:
        return await view_of(target, reactor)
    except (ConnectError, TimedOut) as error:
        if target.others or isinstance(error, Denied):
            raise
        raise ConnectError(f"{error}; in a cluster, name all brokers with -b") from None


async def ask_to_promote(target: Target, reactor: Any, reason: str, manager: str = "") -> dict[str, Any]:
    """Make this broker the primary. Returns its answer."""
    from broker.client import TimedOut

    try:
        return await ask(target, reactor, "PROMOTE", "ha", {"reason": reason} | ({"manager": manager} if manager else {}))
    except TimedOut as error:
        raise TimedOut(
            f"{error}, but it may still succeed: see qpid-ha status --all. To be told why it fails, give a --timeout above the "
            "broker's --ha-promote-timeout (in a switchover, --ha-switchover-timeout)"
        ) from None


async def views_of(target: Target, reactor: Any, cluster: str = "") -> list[dict[str, Any]]:
    """Every member's description of itself: those of the target in their order, then those that only the list of the primary
    names. `error` for members that cannot be reached, and for brokers of another cluster than that of the target, or than
    `cluster`. Refused if the several brokers of the target belong to several clusters, and no `cluster` is given."""
    url = target.url
    if len(url.addresses) == 1:
        asked = await _the_only_view(target, reactor)
        known, cluster = str(asked.get("brokersUrl") or ""), cluster or _cluster_of(asked)
        url = urls.parse(known) if known else url
    views = _of_one_cluster(await _asked(target, reactor, url.addresses), cluster)
    informed = _informed(views)
    seen = {*url.names, *(view.get("address") for view in views)}
    known = str(informed.get("brokersUrl") or "")
    unnamed = [address for address in urls.parse(known).addresses if address.name not in seen] if known else []
    if unnamed and (informed["status"] == "active" or informed.get("primary")):
        views += _of_one_cluster(await _asked(target, reactor, unnamed), cluster or _cluster_of(informed))
    return views


def _informed(views: list[dict[str, Any]]) -> dict[str, Any]:
    """The view whose list of brokers counts."""
    return max(views, key=lambda view: (view["status"] == "active", bool(view.get("primary")), int(view.get("epoch") or 0)))


def again(target: Target, views: list[dict[str, Any]]) -> tuple[Target, str]:
    """Whom to ask next time, when the target has given these views: all members, so that each of them may be lost meanwhile; and
    their cluster."""
    informed = _informed(views)
    reached = {view["broker"]: view[REACHED] for view in views if REACHED in view}
    known = str(informed.get("brokersUrl") or "")
    members = [reached.get(address.name, address) for address in urls.parse(known).addresses] if known else []
    return target.at(*members) if members else target, next(filter(None, map(_cluster_of, views)), "")


async def _asked(target: Target, reactor: Any, addresses: Sequence[urls.Address]) -> list[dict[str, Any]]:
    """The descriptions of themselves of the brokers at these addresses, in this order; `error` for those not reached."""
    from twisted.internet.defer import DeferredList, ensureDeferred

    from broker.client import ClientError

    results: list[tuple[bool, Any]] = await DeferredList(
        [ensureDeferred(view_of(one, reactor)) for one in target.at(*addresses).each()], consumeErrors=True
    )
    views: list[dict[str, Any]] = []
    for address, (succeeded, result) in zip(addresses, results, strict=True):
        if not succeeded and not isinstance(result.value, ClientError):
            result.raiseException()
        if succeeded:
            views.append({"broker": str(result.get("address") or address.name), REACHED: address} | result)
        else:
            error = str(result.value).removeprefix(f"{address.name}: ")
            views.append({"broker": address.name, "status": "", "error": error})
    return views


def _cluster_of(view: dict[str, Any]) -> str:
    """The cluster to which a broker belongs; "" if it has not joined one, or does not say."""
    return str(view.get("clusterId") or "")


def _of_one_cluster(views: list[dict[str, Any]], cluster: str) -> list[dict[str, Any]]:
    """The same views, with an `error` in place of those from another cluster than this one. With "" they must all be of one."""
    brokers = {_cluster_of(view): view["broker"] for view in reversed(views) if _cluster_of(view)}
    if not cluster and len(brokers) > 1:
        told = ", ".join(f"{broker} belongs to cluster {each}" for each, broker in reversed(brokers.items()))
        raise endings.Refused(f"{told}: name only brokers of one cluster with -b")
    return [
        view
        if not cluster or _cluster_of(view) in ("", cluster)
        else {"broker": view["broker"], "status": "", "error": f"of another cluster, {_cluster_of(view)}"}
        for view in views
    ]


async def primary_of(target: Target, reactor: Any) -> tuple[Target, dict[str, Any]]:
    """The primary as a target that knows the other members, and its description of itself. If the target knows others already,
    as from an earlier call, they are asked if it no longer answers. Refused if no broker knows the primary."""
    from broker.client import ClientError

    try:
        at, view = await _primary_of(target, reactor)
    except ClientError:
        if not target.others:
            raise
        at, view = await _primary_of(target.at(*target.url.addresses, *target.others), reactor)
    members = urls.parse(str(view["brokersUrl"])).addresses if view.get("brokersUrl") else ()
    others = tuple(each for each in members if each not in at.url.addresses)
    return replace(at, others=others or target.others, cluster=_cluster_of(view) or target.cluster), view


async def _primary_of(target: Target, reactor: Any) -> tuple[Target, dict[str, Any]]:
    if len(target.url.addresses) == 1:
        view = await _the_only_view(target, reactor)
        cluster = _cluster_of(view)
        if view.get("status") == "active":
            return target, view
        if view.get("primary"):
            url = urls.parse(str(view.get("brokersUrl") or view["primary"]))
            known = next(
                (each for each in url.addresses if each.name == view["primary"]), urls.parse(view["primary"]).addresses[0]
            )
            there = target.at(known)
            view = await view_of(there, reactor)
            if view.get("status") == "active" and (not cluster or _cluster_of(view) in ("", cluster)):
                return there, view
    found = await views_of(target, reactor, target.cluster)
    active = [view for view in found if view["status"] == "active"]
    if not active:
        told = ", ".join(f"{view['broker']} ({view['status'] or view['error']})" for view in found)
        raise endings.Refused(f"there is no primary: {told}")
    newest = max(active, key=lambda view: int(view.get("epoch") or 0))
    return target.at(address_of(newest)), newest


async def hand_over(target: Target, reactor: Any, to: urls.Address | None, reason: str) -> tuple[urls.Address, dict[str, Any]]:
    """Do a planned switchover. Returns the new primary and its answer."""
    found = await views_of(target, reactor)
    if not any(view["status"] == "active" for view in found):
        told = ", ".join(f"{view['broker']} ({view['status'] or view['error']})" for view in found)
        raise endings.Refused(f"there is no primary to hand over: {told}")
    address = candidate_among(found, to)
    return address, await ask_to_promote(target.at(address), reactor, reason)


def candidate_among(views: list[dict[str, Any]], wanted: urls.Address | None) -> urls.Address:
    """The broker that takes over: the wanted one, else the ready backup with the longest log, and among equals the
    first by name.
    """
    active = next((view for view in views if view["status"] == "active"), {})
    told = dict(active.get("membership") or {})
    idle = {*(told.get("learners") or ()), told.get("witness")}
    ready = [view for view in views if view["status"] == "ready" and not view.get("stopped") and view["broker"] not in idle]
    if wanted is not None:
        view = next((view for view in views if is_called(view, wanted.name)), None)
        if view is None:
            raise endings.Refused(
                f"{wanted.name} is not a member; the members are: {', '.join(view['broker'] for view in views)}"
            )
        if view["status"] == "active":
            raise endings.Refused(f"{wanted.name} is already the primary")
        if view["status"] not in ("ready", "catchup"):
            why = f"it is {view['status']}" if view["status"] else view["error"]
            raise endings.Refused(f"{wanted.name} cannot take over: {why}")
        return address_of(view)
    if not ready:
        raise endings.Refused("no backup is ready to take over: qpid-ha status --all shows their states")
    best = max(sorted(ready, key=lambda view: str(view["broker"])), key=lambda view: int(view.get("lastIndex") or 0))
    return address_of(best)


def has_stopped(view: dict[str, Any]) -> str:
    """What to say of a broker that cannot apply its log, as after it was put back to an older release."""
    return f"has stopped applying the log and cannot take over: {view['stopped']}"


def is_called(view: dict[str, Any], name: str) -> bool:
    """Whether this is the broker's name among the members, or the one with which it was reached."""
    return name == view["broker"] or (REACHED in view and name == view[REACHED].name)


def address_of(view: dict[str, Any]) -> urls.Address:
    """The address at which a member has answered. Without it, its own: whether that uses TLS is part of its list of brokers."""
    if REACHED in view:
        reached: urls.Address = view[REACHED]
        return reached
    name = str(view["broker"])
    known = urls.parse(str(view.get("brokersUrl") or name)).addresses
    return next((address for address in known if address.name == name), urls.parse(name).addresses[0])
