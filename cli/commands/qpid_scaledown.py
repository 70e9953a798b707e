"""`qpid-scaledown`: drains the stores of brokers that are no longer wanted, and returns those that are wanted again.

It is a daemon, or with `--once` a command for cron. The stores are in a folder, or in the claims of StatefulSets
(`--namespace`). It prints a line for each event, with `--format json` as JSON. It may be killed at any time: the next
one sees what is left to do (docs/adr/0044, docs/adr/0053).
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.core import urls
from broker.options import SettingsError, way_to_extra
from broker.secret_files import warnings
from cli import endings, options
from cli.output import note, say, warn
from cli.ranges import FloatRange

if TYPE_CHECKING:
    from cli.scaledown.place import Place
    from cli.scaledown.steps import Do

NAME = "qpid-scaledown"
_FOLDER = {"stores": "--stores", "replicas": "--replicas-file", "name": "--name"}
_KUBERNETES = {"server": "--api-server", "token_file": "--api-token-file", "ca_file": "--api-ca-file"}
_CALL_S = 10.0
"""The time for one call of the API server."""


_file = partial(click.option, type=click.Path(path_type=Path), metavar="FILE")


def _interface(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """An IP address to listen on; `localhost` is 127.0.0.1."""
    try:
        return str(ip_address("127.0.0.1" if value == "localhost" else value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not an IP address (0.0.0.0 or :: stand for all)", ctx, param) from None


@click.command(context_settings=options.CONTEXT)
@click.option(
    "--stores",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Folder with the stores, each in a folder NAME-0, NAME-1, ...",
)
@click.option("--name", default="", metavar="NAME", help="Only folders of this NAME. [default: the only NAME there]")
@click.option(
    "--replicas-file",
    "replicas",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the wanted number of brokers. It is read at each poll.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Instead of --stores: a namespace of Kubernetes. Stores are the volumes of its StatefulSets that have the label "
    "understudy/scale-down=yes. Repeat it for several namespaces.",
)
@click.option(
    "--brokers",
    metavar="ADDRESS",
    help="Address of broker N: host:port, with {ordinal} or {5672+ordinal} for its number. [--namespace: by the set's Service]",
)
@click.option("--to", "targets", multiple=True, metavar="URL", help="Target of the messages, as in qpid-drain --to.")
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=1, metavar="N", help="Number of stores drained at a time, of each set. [1]"
)
@click.option("--poll", type=FloatRange(0.1, 60), default=5.0, metavar="SECONDS", help="Time between two polls. [5]")
@click.option("--delete-released", is_flag=True, help="Delete a store, or its claim, when it is empty and released.")
@click.option("--once", is_flag=True, help="Poll once and end: exit code 0 if every unwanted store is released, else 1.")
@click.option("--probe-port", type=click.IntRange(0, 65535), metavar="PORT", help="Answer GET /livez on this port.")
@click.option(
    "--probe-interface",
    callback=_interface,
    default="127.0.0.1",
    metavar="IP",
    help="IP address on which --probe-port listens. [127.0.0.1]",
)
@click.option("--api-server", "server", metavar="URL", help="API server, as https://host:6443. [default: the pod's own]")
@_file("--api-token-file", "token_file", help="File with the bearer token. [default: the pod's own]")
@_file("--api-ca-file", "ca_file", help="CA certificates of the API server. [default: the pod's own]")
@partial(options.connection_options, without=("broker",))
@options.version_option(NAME)
def command(form: str, **given: Any) -> None:
    """Drain the stores of brokers that are no longer wanted: with N wanted brokers, the stores numbered N and above.

    \b
    echo 3 > replicas
    qpid-scaledown --stores /var/lib/understudy \\
        --replicas-file replicas \\
        --brokers 10.0.0.1:{5672+ordinal} --to 10.0.0.1:5672
    qpid-scaledown --namespace shop
        on Kubernetes: the wanted number is the replicas of
        each StatefulSet

    The highest number is drained first. Nothing is drained while the wanted number is 0. If a store is wanted again, its drain
    is cancelled when its broker runs. The store of a wanted broker is never drained, even if the broker is down. Of several
    controllers, one acts.
    """
    own = {name: given.pop(name) for name in (*_FOLDER, *_KUBERNETES, "namespaces", "brokers", "targets")}
    how = {name: given.pop(name) for name in ("parallel", "poll", "delete_released", "once")}
    probes = given.pop("probe_port"), given.pop("probe_interface")
    _must_make_sense(own)
    for line in warnings([(own["token_file"], "its token is")] if own["token_file"] else ()):
        warn(line)
    from cli.scaledown.place import address_of, words_of

    beside = {"to": list(own["targets"])} if own["targets"] else {}
    if own["brokers"] is not None:
        if address_of(own["brokers"], 1) == own["brokers"]:
            raise click.UsageError("--brokers needs {ordinal}, or {5672+ordinal}, where the number of a broker stands")
        beside["brokers"] = [address_of(own["brokers"], 1, set="s", namespace="n")]

    def known(said: Sequence[str]) -> dict[str, list[str]]:
        """All addresses, with the targets that are said in annotations."""
        return beside | ({"to": list(said)} if said else {})

    def target_of(address: str, said: Sequence[str] = (), name: str = "brokers") -> options.Target:
        return options.target(given | {"broker": address}, admin=True, name=name, beside=known(said))

    for name, addresses in beside.items():
        for address in addresses:
            target_of(address, name=name)  # raises if it cannot be a target
    flags = [(option.flags[0], given.get(option.field)) for option in options.CONNECTION if option.field != "broker"]
    how |= {
        "words": words_of([*flags, ("--config", given.get("config"))]),
        "of_step": lambda said, others: _words_of_steps(known(said), others),
        "target_of": target_of,
        "tell": _teller(form),
    }

    async def run(reactor: Any) -> bool:
        from twisted.internet.defer import Deferred, FirstError, ensureDeferred, gatherResults

        from cli.scaledown.controller import Controller

        places = _namespaces(reactor, own, how) if own["namespaces"] else [_folder(reactor, own, how)]
        acting = [
            Controller(reactor, place, how["tell"], parallel=how["parallel"], poll_s=how["poll"], once=how["once"])
            for place in places
        ]
        for each in acting:
            reactor.addSystemEventTrigger("before", "shutdown", each.close)
        if probes[0] is not None:
            _answer_probes(reactor, *probes, lambda: all(each.alive for each in acting))
        try:
            done = await gatherResults([ensureDeferred(each.run()) for each in acting], consumeErrors=True)
        except FirstError as error:
            error.subFailure.raiseException()
            raise
        if any(each.closed for each in acting):
            await Deferred()  # a signal has stopped the controllers, and will end the reactor
        return all(done)

    if not endings.run(run):
        raise endings.Refused("drains or cancellations are left to do: see the events above; at 0 replicas nothing is drained")


def _must_make_sense(own: dict[str, Any]) -> None:
    """UsageError if the options do not say where the stores are, or contradict each other."""
    folder, kubernetes = ([flag for name, flag in flags.items() if own[name]] for flags in (_FOLDER, _KUBERNETES))
    if own["namespaces"]:
        if folder:
            raise click.UsageError(f"{folder[0]} is for stores in a folder, and --namespace for those in Kubernetes: give one")
        if len(set(own["namespaces"])) < len(own["namespaces"]):
            raise click.UsageError("a --namespace is given twice")
        return
    if kubernetes:
        raise click.UsageError(f"{kubernetes[0]} goes with --namespace")
    flags = _FOLDER | {"brokers": "--brokers", "targets": "--to"}
    needed = [flag for name, flag in flags.items() if name != "name" and not own[name]]
    if needed:
        raise click.UsageError(f"{needed[0]} is needed, or --namespace: which stores are looked after")


def _words_of_steps(addresses: dict[str, list[str]], others: Sequence[str] = ()) -> dict[Do, tuple[str, ...]]:
    """More words of a drain, and of a cancellation, if only the brokers, only the targets or only the targets of other sets have
    logins: no login is tried where there is none, and a cancellation logs in at the targets."""
    from cli.scaledown.steps import Do

    brokers, targets = (addresses.get(name, []) for name in ("brokers", "to"))
    at_brokers, at_targets, elsewhere = (any(urls.parse(each).user for each in some) for some in (brokers, targets, others))
    drain = [word for each in brokers if at_brokers and targets and not at_targets for word in ("--login-for", each)]
    cancel = [word for each in targets if at_targets and not at_brokers for word in ("--to", each)]
    if elsewhere and not (at_brokers or at_targets):
        drain = cancel = [word for each in others for word in ("--login-for", each)]
    return {Do.DRAIN: tuple(drain), Do.CALL_OFF: tuple(cancel)}


def _folder(reactor: Any, own: dict[str, Any], how: dict[str, Any]) -> Place:
    from cli.scaledown.folder import Folder, Settings

    settings = Settings(
        stores=own["stores"],
        name=own["name"],
        replicas=own["replicas"],
        brokers=own["brokers"],
        to=own["targets"],
        delete_released=how["delete_released"],
        target_of=how["target_of"],
        words=how["words"],
        of_step=how["of_step"]((), ()),
    )
    return Folder(reactor, settings, how["tell"], once=how["once"])


def _namespaces(reactor: Any, own: dict[str, Any], how: dict[str, Any]) -> list[Place]:
    """A place for each namespace. SettingsError, Refused."""
    try:
        from cli.scaledown.namespace import LEASE_NAME, LEASE_S, Namespace, Settings
        from resource_manager.net.api_access import ACCOUNT, access, object_name, server
        from resource_manager.net.kubernetes import KubernetesClient, Server
        from resource_manager.net.lease import Lease, LeaseOf
    except ModuleNotFoundError as error:
        raise endings.Refused(f"{error}: for --namespace, {way_to_extra('kubernetes')}") from None
    try:
        names = [object_name(name) for name in own["namespaces"]]
        values: dict[str, Any] = {name: own[name] for name in _KUBERNETES} | {"certificate": None, "key": None}
        values |= {"namespace": names[0], "server": None if own["server"] is None else server(own["server"])}
        there = access(values, os.environ, ACCOUNT, "--api-server https://host:6443")
    except ValueError as error:
        raise SettingsError(f"the API server of Kubernetes: {error}") from None
    found: list[Place] = []
    for name in names:
        client = KubernetesClient(reactor, Server(there.url, name, there.token), _CALL_S, there.tls)
        lease = Lease(client, LeaseOf(LEASE_NAME, f"{socket.gethostname()}_{uuid.uuid4()}", LEASE_S), reactor.seconds)
        settings = Settings(
            namespace=name,
            brokers=own["brokers"] or "",
            to=own["targets"],
            delete_released=how["delete_released"],
            target_of=how["target_of"],
            words=how["words"],
            of_step=how["of_step"],
        )
        found.append(Namespace(reactor, client, lease, settings, how["tell"], once=how["once"]))
    return found


def _teller(form: str) -> Any:
    def tell(event: str, facts: dict[str, Any]) -> None:
        if form == "json":
            click.echo(json.dumps({"event": event} | facts))
        else:
            told = ", ".join(f"{name} {_text(fact)}" for name, fact in facts.items())
            say(f"{event}: {told}")

    return tell


def _text(fact: Any) -> str:
    return ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)


def _answer_probes(reactor: Any, port: int, interface: str, alive: Any) -> None:
    from twisted.web import http

    from broker.net.listener import CannotListen, listen
    from broker.net.probes import Probes

    def answer(path: str, health: bool) -> tuple[int, str] | None:
        if path != "/livez":
            return None
        return (http.OK, "it looks") if health else (http.SERVICE_UNAVAILABLE, "no look has succeeded for two minutes")

    try:
        listening: Any = listen(reactor, Probes(reactor, alive, answer), port, interface, ("--probe-port", "--probe-interface"))
    except CannotListen as error:
        raise endings.Refused(str(error)) from None
    note(f"Probes on TCP port {listening.getHost().port}")


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
