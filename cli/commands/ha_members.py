"""`qpid-ha add-broker`, `remove-broker`, `replace-broker`: change the members of a cluster.

Each command finds the primary by itself, whichever member `-b` names. Several changes are made one after the other: the
next one begins when the previous one is committed, and a new broker has caught up and has a vote. Changes that are
already done are skipped, so an interrupted command can be run again.
"""

from __future__ import annotations

from typing import Any

import click

from broker.core import urls
from cli import endings, options
from cli.commands.ha_cluster import ask, ha_command, hand_over, primary_of, view_of
from cli.options import Target
from cli.output import show_json, warn
from cli.ranges import FloatRange

PRIMARY_ITSELF = 421
"""The status of an answer: the broker to be removed is the primary, which must hand over first."""
_LOOK_S = 0.1
_REFUSED_S = 3.0
"""How long the link to a new broker may be refused, as while it starts, before the command no longer waits for it."""
_ONE_IS_ENOUGH = "is the witness of this cluster already"
"""Part of the text with which the log refuses a second witness (ha.core.membership)."""
_TO_REPLACE = "; to put another broker in its place"
"""The part of the text with which the primary refuses a removal (ha.member_changes) from which on it names this command."""
_UNCHANGED = "nothing was changed: "
_LACKS = {"voter": "has no vote yet", "learner": "has not caught up yet"}
"""What a new broker may lack to take the place of one with this role."""
_AS = {"witness": {"witness": True}, "learner": {"standby": True}}
"""The attributes of ADD-BROKER for each role, besides the address."""

_force = click.option("--force", is_flag=True, help="Do it even if the cluster then cannot lose a broker.")
_wait = click.option(
    "--wait", type=FloatRange(0, 86_400), default=600.0, metavar="SECONDS", help="Time for a new broker to catch up. [600]"
)


@ha_command("add-broker")
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Add it even if the primary cannot reach it.")
@click.option("--witness", is_flag=True, help="Add it as the witness, which votes and stores no messages.")
@click.option("--learner", is_flag=True, help="Add it as a learner that never votes, as for a second site.")
@click.option("--site", metavar="NAME", help="Set its tag `site` to NAME.")
@_wait
def add_broker(
    addresses: tuple[str, ...],
    force: bool,
    witness: bool,
    learner: bool,
    site: str | None,
    wait: float,
    form: str,
    **given: Any,
) -> None:
    """Add brokers to the cluster, one after the other.

    Each broker must run with --ha-cluster yes and the addresses of the cluster's brokers in --ha-brokers-url. It is a learner
    first. It gets a vote when it has caught up, and the command waits for that. With --wait 0 the command ends when the broker
    is a learner. A witness must run with --ha-witness set to its own address. A cluster has at most one witness. With --learner
    the broker stays a learner, and the command waits for nothing.
    """
    if witness and learner:
        raise click.UsageError("--witness and --learner exclude each other: a witness has nothing to learn")
    role = "witness" if witness else "learner" if learner else "voter"
    target, names = options.target(given, admin=True), _names(addresses)

    async def change(reactor: Any) -> None:
        for name in names:
            await _add(target, reactor, name, force, wait, role)
            if site is not None:
                await tag_site(target, reactor, name, site)

    _run(change, {"address": names[0], "addresses": names}, form)


@ha_command("remove-broker")
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@_force
def remove_broker(addresses: tuple[str, ...], force: bool, form: str, **given: Any) -> None:
    """Remove brokers from the cluster, one after the other.

    A primary hands over first. Without --force, a removal is refused when the cluster could not lose one more broker after it.
    It is always refused while no majority of the remaining voting members is connected.
    """
    target, names = options.target(given, admin=True), _names(addresses)

    async def change(reactor: Any) -> None:
        for name in names:
            await _remove(target, reactor, name, force)

    _run(change, {"address": names[0], "addresses": names}, form)


@ha_command("replace-broker")
@click.argument("old")
@click.argument("new")
@click.option("--force", is_flag=True, help="Remove OLD even if the cluster then cannot lose a broker, or NEW has no vote yet.")
@_wait
def replace_broker(old: str, new: str, force: bool, wait: float, form: str, **given: Any) -> None:
    """Replace the broker OLD, which may be dead, by NEW.

    NEW is added and catches up; then OLD is removed. A primary hands over first. NEW gets OLD's tag `site`, unless NEW has one.
    If this is interrupted, run it again. In a cluster of two brokers this needs --force when NEW has its vote already.
    With --wait 0 OLD stays, and the command fails, if NEW has no vote yet; with --force too, OLD is removed all the same.
    A learner that never votes is replaced by one that never votes. A witness is replaced by a witness: because a cluster has at
    most one, OLD is removed first. So this is refused unless NEW runs as a witness, the primary reaches it, and a majority of
    the others is connected.
    """
    target, (gone, come) = options.target(given, admin=True), _names((old, new))
    if gone == come:
        raise click.UsageError("OLD and NEW are the same broker")

    async def change(reactor: Any) -> None:
        at, view = await primary_of(target, reactor)
        was = _becomes(view, gone)
        role = was or await _half_replaced(at, reactor, view, gone, come)
        _check_standing(view, come, role)
        if was == "witness":
            _check_others(view, gone)
            await _check_witness(at, reactor, come)
            await _replace_witness(at, reactor, gone, come, wait)
        else:
            await _add(at, reactor, come, False, wait, role)
        if role == "learner":
            await wait_for_role(at, reactor, come, role, wait, level=True)
        if site := _tags(view, gone).get("site") if "site" not in _tags(view, come) else None:
            await tag_site(at, reactor, come, str(site))
        at, now = await primary_of(at, reactor)
        ahead = _role(now, gone) and was != "witness" and not _stands(now, come, role, role == "learner")
        if ahead and not force:
            raise endings.Refused(
                f"{gone} was not removed: {come} is a member now, but {_LACKS[role]}; run the command again without --wait 0, "
                f"or give --force to remove {gone} before that"
            )
        if _role(view, come) == "voter" and _role(now, gone):
            await _remove_rest(at, reactor, gone, come, force)
        elif _role(now, gone):
            in_its_place = _role(now, come) == "voter"
            await _remove(at, reactor, gone, force or in_its_place)  # with a new voter as many are left as there were before
        if ahead:
            warn(f"{gone} was removed before {come} was in its place: {come} {_LACKS[role]}, which qpid-ha query shows")

    _run(change, {"old": gone, "new": come}, form)


def _run(change: Any, said: dict[str, Any], form: str) -> None:
    endings.run(change)
    if form == "json":
        show_json(said | {"done": True})


def _names(texts: tuple[str, ...]) -> list[str]:
    found = [urls.parse(text) for text in texts]
    if any(len(url.addresses) != 1 for url in found):
        raise click.UsageError("name one broker at a time, host:port")
    return [url.names[0] for url in found]


def _members(view: dict[str, Any]) -> list[str]:
    return [str(member.get("address")) for member in view.get("members") or []]


def _role(view: dict[str, Any], address: str) -> str:
    """voter, witness, learner, or "" for a broker that is not a member, as the primary reports."""
    return next((str(each.get("role")) for each in view.get("members") or [] if each.get("address") == address), "")


def _stays(view: dict[str, Any], address: str) -> bool:
    """Whether this broker is a learner that never votes."""
    return address in (dict(view.get("membership") or {}).get("standby") or ())


def _becomes(view: dict[str, Any], address: str) -> str:
    """The role that this member has for good: a learner that has not caught up yet becomes a voter. "" as for `_role`."""
    role = _role(view, address)
    return "voter" if role == "learner" and not _stays(view, address) else role


def _tags(view: dict[str, Any], address: str) -> dict[str, Any]:
    return dict(dict(view.get("settings") or {}).get(f"tags:{address}") or {})


def _check_standing(view: dict[str, Any], address: str, role: str) -> None:
    """Refused if the broker is already a member in a role from which it would never get to this one."""
    if _becomes(view, address) in ("", role):
        return
    now, stays = _role(view, address), _stays(view, address)
    learner = "a learner that never votes" if stays else "a learner that gets a vote when it has caught up"
    standing = {"voter": "a voter", "witness": "the witness", "learner": learner}[now]
    raise endings.Refused(
        f"{address} is a member already, as {standing}: to give it another role, "
        f"remove it first (qpid-ha remove-broker {address})"
    )


def _check_others(view: dict[str, Any], gone: str) -> None:
    """Refused if the other voters that are connected could not commit the removal of this one."""
    left = [each for each in view.get("members") or [] if each.get("role") == "voter" and each.get("address") != gone]
    away = [str(each.get("address")) for each in left if not each.get("connected")]
    if 2 * len(away) >= len(left):
        raise endings.Refused(
            f"nothing was changed: {', '.join(away)} {'is' if len(away) == 1 else 'are'} not connected, and without {gone} the "
            "primary has no majority: wait until qpid-ha query shows a majority of the brokers as connected"
        )


async def _check_witness(target: Target, reactor: Any, address: str) -> None:
    """Refused unless the broker at this address answers and runs as a witness."""
    from broker.client import ClientError

    try:
        witness = await _runs_as_witness(target, reactor, address)
    except ClientError as error:
        why = str(error).removeprefix(f"{address}: ")
        raise endings.Refused(f"nothing was changed: {address} does not answer ({why}): start it first, as a witness") from None
    if not witness:
        raise endings.Refused(
            f"nothing was changed: {address} does not run as a witness: start it with --ha-witness, its own address"
        )


async def _replace_witness(target: Target, reactor: Any, gone: str, come: str, wait_s: float) -> None:
    """Remove this witness and add the other one, if the primary reaches it.

    The primary answers a request to add a witness beside another one with its obstacle, "nothing was changed: ...", if it has
    one. Otherwise the log refuses it: one witness is enough.
    """
    from broker.client import ManagementError

    await settled(target, reactor)
    try:
        await ask(target, reactor, "ADD-BROKER", "ha", {"address": come, "force": False} | _AS["witness"])
    except ManagementError as error:
        if _ONE_IS_ENOUGH not in error.text:
            raise
        await _remove(target, reactor, gone, True)
    try:
        await _add(target, reactor, come, False, wait_s, "witness")
    except ManagementError as error:
        raise endings.Refused(
            f"{gone} is removed, and {come} is not added, so the cluster has no witness: "
            f"{error.text.removeprefix(_UNCHANGED)}; mend that, and run the command again"
        ) from None


async def _runs_as_witness(target: Target, reactor: Any, address: str) -> bool:
    return (await view_of(target.at(urls.parse(address).addresses[0]), reactor)).get("witness") is True


async def _half_replaced(target: Target, reactor: Any, view: dict[str, Any], gone: str, come: str) -> str:
    """The role that the new broker has for good, or gets because an earlier run has already removed the old witness. Refused if
    neither broker is a member, and nothing shows such a run."""
    from broker.client import ClientError

    if role := _becomes(view, come):
        return role
    text = f"{gone} is not a member; the members are: {', '.join(_members(view))}"
    if any(_role(view, each) == "witness" for each in _members(view)):
        raise endings.Refused(text)
    try:
        if await _runs_as_witness(target, reactor, come):
            return "witness"
    except ClientError:
        pass  # the text says what to do
    raise endings.Refused(
        f"{text}; if it was the witness, and this command was interrupted, start {come} with --ha-witness, its own address, "
        "and run the command again"
    )


async def tag_site(target: Target, reactor: Any, address: str, site: str) -> None:
    """Set the tag `site` of this broker; its other tags stay."""
    at, view = await primary_of(target, reactor)
    tags = _tags(view, address) | {"site": site}
    await ask(at, reactor, "SET", "ha", {"setting": "tags", "address": address, "tags": tags})


async def _add(target: Target, reactor: Any, address: str, force: bool, wait_s: float, role: str) -> None:
    target, view = await primary_of(target, reactor)
    _check_standing(view, address, role)
    if not _role(view, address):
        await settled(target, reactor)
        body = {"address": address, "force": force} | _AS.get(role, {})
        await ask(target, reactor, "ADD-BROKER", "ha", body)
    await wait_for_role(target, reactor, address, role, wait_s)


async def wait_for_role(target: Target, reactor: Any, address: str, role: str, wait_s: float, *, level: bool = False) -> None:
    """Wait until the primary reports that the broker has this role, and with `level` that it has caught up. Refused if that
    takes too long, or if the broker and the primary do not accept each other."""
    from twisted.internet.task import deferLater

    from broker.client import ClientError

    until_s, refused_s = reactor.seconds() + wait_s, reactor.seconds()
    lost_s = refused_s
    while wait_s:
        try:
            target, view = await primary_of(target, reactor)
            lost_s = reactor.seconds()
        except (ClientError, endings.Refused):
            if reactor.seconds() >= min(until_s, lost_s + target.timeout_s):
                raise
            await deferLater(reactor, _LOOK_S, lambda: None)
            continue
        if _stands(view, address, role, level):
            return
        why = next((str(each.get("refused") or "") for each in view.get("members") or [] if each.get("address") == address), "")
        refused_s = refused_s if why else reactor.seconds()
        if reactor.seconds() >= refused_s + _REFUSED_S:
            raise endings.Refused(
                f"{address} is a member now, but cannot be linked to the primary: {why}; "
                f"start it as a broker of this cluster, or remove it (qpid-ha remove-broker {address})"
            )
        if reactor.seconds() >= until_s:
            raise endings.Refused(
                f"{address} is a member now, but has not caught up within {wait_s:g} s: qpid-ha query shows its lag"
            )
        await deferLater(reactor, _LOOK_S, lambda: None)


def _stands(view: dict[str, Any], address: str, role: str, level: bool) -> bool:
    member: dict[str, Any] = next((each for each in view.get("members") or [] if each.get("address") == address), {})
    return member.get("role") == role and (not level or member.get("state") == "ready")


async def _remove(target: Target, reactor: Any, address: str, force: bool) -> None:
    from broker.client import ManagementError

    at, _ = await primary_of(target, reactor)
    await settled(at, reactor)
    body = {"address": address, "force": force}
    try:
        await ask(at, reactor, "REMOVE-BROKER", "ha", body)
    except ManagementError as error:
        if error.status != PRIMARY_ITSELF:
            raise
        asked = target if len(target.url.addresses) > 1 else at
        taker, _ = await hand_over(asked, reactor, None, f"{address} is to be removed")
        await ask(target.at(taker), reactor, "REMOVE-BROKER", "ha", body)


async def _remove_rest(target: Target, reactor: Any, gone: str, come: str, force: bool) -> None:
    """Remove the old broker beside a new one that had its vote before, as after a run that was interrupted. Without --force it is
    refused like any removal, because then there would be fewer voters than before this run."""
    from broker.client import ManagementError

    try:
        await _remove(target, reactor, gone, force)
    except ManagementError as error:
        why, advice, _ = error.text.partition(_TO_REPLACE)
        if not advice:
            raise
        raise endings.Refused(
            f"{why}; {come} had a vote already: if an earlier run was interrupted, give --force to finish it"
        ) from None


async def settled(target: Target, reactor: Any) -> None:
    """Wait until the previous change of members is committed: only one is made at a time."""
    from twisted.internet.task import deferLater

    until_s = reactor.seconds() + target.timeout_s
    while not dict((await view_of(target, reactor)).get("membership") or {}).get("committed", True):
        if reactor.seconds() >= until_s:
            raise endings.Refused(
                "an earlier change of members is not committed yet: qpid-ha query shows which members are connected"
            )
        await deferLater(reactor, _LOOK_S, lambda: None)
