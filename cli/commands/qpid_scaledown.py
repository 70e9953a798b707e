"""`qpid-scaledown`: drain the stores of brokers that are not wanted any more, and give those back that are wanted again.

A daemon, or with `--once` a command for cron. It prints a line for each event, with `--format json` as JSON. Killed at any time
it leaves nothing undone that the next one does not see (docs/adr/0044).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from cli import endings, options

NAME = "qpid-scaledown"


@click.command(context_settings=options.CONTEXT)
@click.option(
    "--stores",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    metavar="FOLDER",
    help="Folder with the stores, each in a folder NAME-0, NAME-1, ...",
)
@click.option("--name", default="", metavar="NAME", help="Only folders of this NAME. [default: the only NAME there]")
@click.option(
    "--replicas-file",
    "replicas",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="File with the wanted number of brokers. It is read at each poll.",
)
@click.option(
    "--brokers",
    required=True,
    metavar="ADDRESS",
    help="Address of broker N: host:port, with {ordinal} or {5672+ordinal} for its number.",
)
@click.option(
    "--to", "targets", multiple=True, required=True, metavar="URL", help="Target of the messages, as in qpid-drain --to."
)
@click.option("--parallel", type=click.IntRange(1, 64), default=1, metavar="N", help="Number of stores drained at a time. [1]")
@click.option("--poll", type=click.FloatRange(0.1, 60), default=5.0, metavar="SECONDS", help="Time between two polls. [5]")
@click.option("--delete-released", is_flag=True, help="Delete a store when it is empty and released.")
@click.option("--once", is_flag=True, help="Poll once and end: exit code 0 if nothing is left to drain, 1 if something is.")
@click.option("--probe-port", type=click.IntRange(0, 65535), metavar="PORT", help="Answer GET /livez on this port.")
@partial(options.connection_options, without=("broker",))
@click.version_option(options.VERSION, prog_name=NAME)
def command(stores: Path, replicas: Path, targets: tuple[str, ...], form: str, **given: Any) -> None:
    """Drain the stores of brokers that are no longer wanted: with N wanted brokers, the stores numbered N and above.

    \b
    echo 3 > replicas
    qpid-scaledown --stores /var/lib/understudy --replicas-file replicas --brokers 10.0.0.1:{5672+ordinal} --to 10.0.0.1:5672

    The highest number is drained first. Nothing is drained while the wanted number is 0. If a store is wanted again, its drain
    is cancelled when its broker runs. A wanted broker that does not run is left alone: it may be restarting. Of several
    controllers, one acts.
    """
    own = {name: given.pop(name) for name in ("name", "brokers", "parallel", "poll", "delete_released", "once", "probe_port")}
    for url in targets:
        options.target(given | {"broker": url}, admin=True, name="to")  # whether it can be
    from cli.scaledown.controller import address_of, words_of

    if address_of(own["brokers"], 1) == own["brokers"]:
        raise click.UsageError("--brokers needs {ordinal}, or {5672+ordinal}, where the number of a broker stands")
    options.target(given | {"broker": address_of(own["brokers"], 1)}, admin=True, name="brokers")
    flags = [(option.flags[0], given.get(option.field)) for option in options.CONNECTION if option.field != "broker"]
    words = words_of([*flags, ("--config", given.get("config"))])

    async def run(reactor: Any) -> bool:
        from cli.scaledown.controller import Controller, Settings

        settings = Settings(
            stores=stores,
            name=own["name"],
            replicas=replicas,
            brokers=own["brokers"],
            to=targets,
            parallel=own["parallel"],
            poll_s=own["poll"],
            delete_released=own["delete_released"],
            target_of=lambda address: options.target(given | {"broker": address}, admin=True, name="brokers"),
            words=words,
        )
        controller = Controller(reactor, settings, _teller(form), own["once"])
        reactor.addSystemEventTrigger("before", "shutdown", controller.close)
        if own["probe_port"] is not None:
            _answer_probes(reactor, own["probe_port"], lambda: controller.alive)
        return await controller.run()

    if not endings.run(run):
        raise endings.Refused("something is left to be done: the events say what")


def _teller(form: str) -> Any:
    def tell(event: str, facts: dict[str, Any]) -> None:
        if form == "json":
            click.echo(json.dumps({"event": event} | facts))
        else:
            told = ", ".join(f"{name} {_text(fact)}" for name, fact in facts.items())
            click.echo(f"{event}: {told}")

    return tell


def _text(fact: Any) -> str:
    return ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)


def _answer_probes(reactor: Any, port: int, alive: Any) -> None:
    from twisted.web import http

    from broker.net.probes import Probes

    def answer(path: str, health: bool) -> tuple[int, str] | None:
        if path != "/livez":
            return None
        return (http.OK, "it looks") if health else (http.SERVICE_UNAVAILABLE, "no look has succeeded for two minutes")

    listening = reactor.listenTCP(port, Probes(reactor, alive, answer))
    click.echo(f"Probes on TCP port {listening.getHost().port}", err=True)


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
