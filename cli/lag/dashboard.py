"""`qpid-lag dashboard`: the report in a browser, kept up to date; or once, as a page in a file or a picture."""

from __future__ import annotations

import os
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from cli.lag.shell import Command, master, put, refuse, summarises, writable
from cli.ranges import FloatRange

_REFRESH_S = 10.0
_LOOK_S = 1.0


@click.command(cls=Command)
@click.option("--input", "path", required=True, metavar="DIR", help="Folder of telemetry or of a stream, or a URL (s3a://...).")
@click.option("--output", metavar="PAGE.html", type=click.Path(dir_okay=False), help="Write the page to a file or URL and end.")
@click.option("--png", metavar="FILE.png", type=click.Path(dir_okay=False), help="Write a picture of the page and end.")
@click.option("--width", type=click.IntRange(500, 3840), default=1440, show_default=True, help="Width of the picture, in pixels.")
@click.option("--dark", is_flag=True, help="Make the picture in dark colours.")
@click.option("--listen", default="127.0.0.1", metavar="ADDRESS", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: a free one]")
@click.option("--name", "names", multiple=True, metavar="HOST", help="Another host name that browsers may use.")
@click.option(
    "--refresh",
    "refresh_s",
    type=FloatRange(min=1, max=86_400),
    default=_REFRESH_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two summaries.",
)
@summarises
@master
def dashboard(
    output: str | None,
    png: str | None,
    width: int,
    dark: bool,
    listen: str,
    port: int,
    names: tuple[str, ...],
    refresh_s: float,
    **asked: Any,
) -> None:
    """Show replication lag in a browser, refreshed while telemetry arrives."""
    from spark_analytics.errors import Refused

    try:
        if output is not None or png is not None:
            _write(asked, output, png, width=width, dark=dark)
        else:
            _serve(asked, listen, port, frozenset(name.lower() for name in names), refresh_s)
    except Refused as refused:
        refuse(refused)
    except KeyboardInterrupt:
        raise SystemExit(0) from None


# ---- once


def _write(asked: dict[str, Any], output: str | None, png: str | None, *, width: int, dark: bool) -> None:
    from spark_analytics.dashboard import page, picture
    from spark_analytics.locations import is_remote
    from spark_analytics.worker import Worker

    names = [name for name in (output, png) if name is not None]
    for name in names:
        if not is_remote(name):
            writable(name)
    if png is not None:
        picture.find()
    worker = Worker()
    try:
        made = page.render(worker.report(asked))
        contents = [] if output is None else [made.encode()]
        contents += [] if png is None else [picture.picture_of(made, width=width, dark=dark)]
        for name, content in zip(names, contents, strict=True):
            if is_remote(name):
                worker.put(name, content)
            else:
                put(Path(name), content)
    finally:
        worker.stop()
    for name in names:
        click.echo(name if is_remote(name) else str(Path(name).resolve()))


# ---- kept up to date


def _serve(asked: dict[str, Any], listen: str, port: int, names: frozenset[str], refresh_s: float) -> None:
    from cli import endings
    from spark_analytics import session
    from spark_analytics.errors import Refused, WrongUsage
    from spark_analytics.locations import is_remote
    from spark_analytics.requests import times_of

    times_of(asked, int(time.time() * 1000))  # refuses a wrong time before anything starts
    if not is_remote(asked["path"]) and not Path(asked["path"]).exists():
        raise Refused(f"there is no folder {asked['path']}: give --input the folder that the brokers write telemetry to")
    if session.SUBMITTED not in os.environ:
        session.java_version()
    try:
        address = ip_address("127.0.0.1" if listen == "localhost" else listen)
    except ValueError:
        raise WrongUsage(
            f"--listen {listen} is not an IP address: give one such as 127.0.0.1, and use --name for a host name"
        ) from None

    async def work(reactor: Any) -> None:
        await _run(reactor, asked, str(address), port, names, refresh_s)

    endings.run(work)


async def _run(reactor: Any, asked: dict[str, Any], address: str, port: int, names: frozenset[str], refresh_s: float) -> None:
    """Serve until the reactor stops; under spark-submit also until spark-submit ends, because it sends no signal."""
    from twisted.internet.defer import Deferred
    from twisted.internet.error import CannotListenError
    from twisted.internet.task import LoopingCall

    from cli.lag.supervisor import Supervisor
    from cli.lag.web import Board, Site, bounded
    from spark_analytics.errors import Refused
    from spark_analytics.session import SUBMITTED

    board = Board(refresh_s)
    try:
        listening = reactor.listenTCP(port, bounded(Site(board, reactor, names)), interface=address)
    except CannotListenError as error:
        reason = error.socketError.strerror or str(error.socketError)
        raise Refused(f"cannot listen on {address} port {port}: {reason}; choose another --port or --listen") from None
    supervisor = Supervisor(reactor, board, asked, refresh_s=refresh_s)
    reactor.addSystemEventTrigger("before", "shutdown", supervisor.stop)
    supervisor.start()
    shown = f"[{address}]" if ":" in address else address
    click.echo(f"http://{shown}:{listening.getHost().port}/")
    if not ip_address(address).is_loopback:
        click.echo("qpid-lag: everyone who can reach this address can read the figures, without a login", err=True)
    click.echo("Spark makes the first summary; Ctrl-C ends it", err=True)
    ended: Deferred[None] = Deferred()
    parent = os.getppid()

    def look() -> None:
        if os.getppid() != parent and not ended.called:
            ended.callback(None)

    if SUBMITTED in os.environ:
        LoopingCall(look).start(_LOOK_S)
    await ended
