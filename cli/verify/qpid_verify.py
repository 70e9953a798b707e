"""`qpid-verify`: sends numbered messages through a cluster, receives them, and reports lost, repeated and changed ones.

Life of a run: the options are read, and the queues are created on the primary. Producers and consumers, ordinary
clients with all addresses of the URL, work for the given seconds, whatever happens to the brokers meanwhile. Then the
producers wait for their outcomes, and the consumers drain the queues. The queues are deleted, and the report is
printed. Ctrl-C ends the sending early, and a second Ctrl-C ends the draining; the report is printed in any case.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click

from broker.core import urls
from broker.core.sasl_client import Login
from broker.core.urls import Url
from broker.options import (
    CONFIG,
    PASSWORD_FILE,
    SASL_MECHANISM,
    Option,
    SettingsError,
    gather,
    number,
    one_of,
    seconds,
    size,
    with_password,
    yes_no,
)
from broker.secret_files import warnings
from broker.tls_files import FILES, TlsFiles
from cli import endings, options
from cli.output import figures, note, show_json, warn, window
from cli.verify import interrupts
from cli.verify.core.checker import Report
from cli.verify.core.measures import Latency
from cli.verify.queues import NotServed, NotSo, Queues
from cli.verify.run import Run, RunError, Workload

NAME = "qpid-verify"
MAX_QUEUES = 1000
MAX_CLIENTS = 64
SHOW_S = 0.5
START_S = 5.0
"""Time for a client's process to start, while many start."""


def _prefix(value: str) -> str:
    if not 0 < len(value) <= 100 or not value.isprintable() or any(character in value for character in " /$"):
        raise ValueError(f'{value!r} is not a name of 1 to 100 printable characters without " ", "/" and "$"')
    return value


OPTIONS = (
    Option(
        "brokers",
        urls.parse,
        None,
        "URL",
        "Addresses of all brokers of the cluster, as in amqp:host1:5672,host2:5672,host3:5672; or one standalone broker.",
        aliases=("broker",),
        short="b",
    ),
    Option("seconds", seconds(0.1, 30 * 86_400), 10.0, "SECONDS", "Time during which messages are sent.", short="s"),
    Option(
        "producers", number(1, MAX_CLIENTS), 1, "N", "Number of producers. Each is a process that sends to all queues in turn."
    ),
    Option("consumers", number(1, MAX_CLIENTS), 1, "N", "Number of consumers. Each is a process that consumes from all queues."),
    Option("queues", number(1, MAX_QUEUES), 1, "N", "Number of queues."),
    Option("size", size(1, 16 << 20), 100, "BYTES", "Size of a message's body."),
    Option("rate", number(0, 1_000_000), 0, "N", "Maximum messages per second, over all producers. 0: no limit."),
    Option(
        "window",
        number(1, 10_000),
        300,
        "N",
        "Maximum number of messages in flight for a producer, and the credit of a consumer.",
    ),
    Option(
        "once",
        yes_no,
        False,
        "yes|no",
        "Number the deliveries, so that the broker drops a message that is sent again (exactly-once sending).",
    ),
    Option("queue-prefix", _prefix, NAME, "NAME", "Prefix of the queue names: NAME-1, NAME-2, ..."),
    Option("replicate", one_of("all", "configuration", "none"), "all", "LEVEL", "Replication level of the queues."),
    Option("keep-queues", yes_no, False, "yes|no", "Do not delete the queues at the end."),
    Option("drain-timeout", seconds(0, 86_400), 60.0, "SECONDS", "Time to wait for missing messages while none arrives."),
    Option("heartbeat", seconds(2, 3600), 5.0, "SECONDS", "A client disconnects from a broker that is silent for this time."),
    Option("timeout", seconds(0.1, 3600), 10.0, "SECONDS", "Time to wait for a primary at the start.", short="t"),
    SASL_MECHANISM,
    PASSWORD_FILE,
    *FILES,
)
"""All options of the command, except the output format."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run; times in seconds."""

    url: Url
    seconds: float
    level: str
    keep: bool
    drain_s: float
    timeout_s: float
    workload: Workload


def read(command_line: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """The settings from the command line, the environment and the file of `--config`. SettingsError says what is wrong."""
    values = gather(OPTIONS, command_line, environ, note=warn)
    url: Url | None = values["brokers"]
    if url is None:
        raise SettingsError("--brokers URL is needed: the addresses of all brokers, as in amqp:host1:5672,host2:5672,host3:5672")
    url = with_password(url, values["password_file"], "brokers")
    files = TlsFiles.from_values(values)
    for line in warnings(files.private):
        warn(line)
    if any(address.transport == urls.SSL for address in url.addresses):
        from broker.net.credentials import Credentials  # this import takes time

        Credentials(files)  # raises an error of one line if a file cannot be used
    workload = Workload(
        addresses=[f"amqps://{one.name}" if one.transport == urls.SSL else one.name for one in url.addresses],
        queues=[f"{values['queue_prefix']}-{position}" for position in range(1, values["queues"] + 1)],
        producers=values["producers"],
        consumers=values["consumers"],
        size=values["size"],
        rate=values["rate"] or None,
        window=values["window"],
        heartbeat_s=values["heartbeat"],
        once=values["once"],
        login=Login(url.user or None, url.password, values["sasl_mechanism"]),
        tls=files,
    )
    return Settings(
        url, values["seconds"], values["replicate"], values["keep_queues"], values["drain_timeout"], values["timeout"], workload
    )


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option of the table, as text: the table's parsers read it, wherever it comes from."""
    for option in reversed([*OPTIONS, CONFIG]):
        shown = f" [default: {option.default_text}]" if option.default_text else ""
        function = click.option(*option.flags, option.field, metavar=option.metavar, default=None, help=option.help + shown)(
            function
        )
    return function


@click.command(context_settings=options.CONTEXT)
@_with_options
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option("--json", "form", flag_value="json", help="Same as --format json.")
@options.version_option(NAME)
def command(form: str, **options: Any) -> None:
    """Send numbered messages through a cluster, receive them, and report lost, repeated and changed ones.

    Meanwhile kill, freeze, promote, restart or disconnect brokers. Every accepted message must arrive unchanged and in order:
    the exit code is 0 if all did, and 1 if not. Ctrl-C ends the sending; messages on their way are still received and counted.
    """
    settings = read(options, os.environ)
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # the clients' processes are told by a socket in it what to do
        raise SettingsError("no folder for temporary files can be written: name one in TMPDIR") from None
    interrupts.take(signal.SIGTERM, signal.SIGHUP)
    logging.getLogger("proton").setLevel(logging.CRITICAL)  # the errors below report the same
    try:
        with _queues(settings) as queues:
            report, run = _verify(settings, queues)
    except NotServed as error:
        hint = "" if error.denied else "; is the cluster running, and has it a primary (qpid-ha status --all)?"
        raise endings.Unreachable(f"{error}{hint}") from None
    except (NotSo, RunError) as error:
        raise endings.Refused(str(error)) from None
    if form == "json":
        more = {"faults": report.faults(), "trouble": run.trouble(), "queues": list(settings.workload.queues)}
        show_json(asdict(report) | more)
    else:
        click.echo(figures(_rows(report), window()))
    _judge(report, run, settings)


@contextlib.contextmanager
def _queues(settings: Settings) -> Iterator[Queues]:
    """The queues of the run, from before it until after it."""
    work = settings.workload
    queues = Queues(work.addresses, work.queues, settings.level, login=work.login, timeout_s=settings.timeout_s, tls=work.tls)
    try:
        queues.prepare()
        yield queues
    finally:
        if not settings.keep:
            try:
                for line in queues.delete():
                    warn(line)
            except NotServed as error:
                warn(f"the queues were left: {error}")
        queues.close()


def _verify(settings: Settings, queues: Queues) -> tuple[Report, Run]:
    """Do the run."""
    with Run(settings.workload) as run:
        try:
            try:
                if not run.begins(settings.timeout_s + START_S * len(run.clients)):
                    raise NotServed(f"not every client finds a broker: {run.plight()}")
                _pass_time(run, settings.seconds)
            except KeyboardInterrupt:
                _say("interrupted: draining the queues; Ctrl-C again to stop at once")
            report = run.finish(timeout_s=settings.drain_s, empty=lambda: _is_empty(queues))
        except KeyboardInterrupt:
            report = run.finish(timeout_s=0)
    return report, run


def _is_empty(queues: Queues) -> bool:
    try:
        return queues.depth() == 0
    except (NotServed, NotSo):
        return False


def _pass_time(run: Run, wanted_s: float) -> None:
    """Let the clients work, and show the progress on a terminal."""
    began = time.monotonic()
    while (left_s := began + wanted_s - time.monotonic()) > 0:
        run.pause(min(left_s, SHOW_S))
        _show(f"{time.monotonic() - began:.0f} s  {run.accepted:,} accepted  {run.received:,} received")
    _show("")


def _show(text: str) -> None:
    """Replace the line before, on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)


def _say(text: str) -> None:
    note(f"{NAME}: {text}")


def _rows(report: Report) -> list[tuple[str, str]]:
    """The report for people."""
    measures = report.measures
    per_s = report.accepted / measures.seconds if measures.seconds else 0.0
    explained = report.duplicated - report.unexplained
    open_ends = "" if measures.drained else " (not drained: they may still be there)"
    return [
        ("accepted", f"{report.accepted:,} of {report.sent:,} sent, {per_s:,.0f}/s; sent again {report.sent_again:,} times"),
        ("received", f"{report.received:,}"),
        ("lost", f"{report.lost:,}{open_ends if report.lost else ''}"),
        (
            "duplicated",
            f"{report.duplicated:,} ({explained:,} as sent again or not confirmed, {report.unexplained:,} unexplained)",
        ),
        ("unexpected", f"{report.unexpected:,}"),
        ("altered", f"{report.altered:,}"),
        ("reordered", f"{report.reordered:,}"),
        ("refused", f"{report.refused:,}"),
        ("no outcome", f"{report.recovered + report.unknown:,} ({report.recovered:,} of them received)"),
        ("connections", f"{measures.connections:,}"),
        ("longest gap", f"{measures.accept_gap_s:.3f} s without an accept, {measures.receive_gap_s:.3f} s without a message"),
        ("latency", f"{_latency(measures.accept_latency)} until accepted; {_latency(measures.receive_latency)} until received"),
    ]


def _latency(latency: Latency) -> str:
    return f"p50 {1000 * latency.p50_s:,.1f} ms, p99 {1000 * latency.p99_s:,.1f} ms"


def _judge(report: Report, run: Run, settings: Settings) -> None:
    """End with the exit code that follows from the report."""
    faults = report.faults()
    undrained = not report.measures.drained
    if undrained and not report.measures.served and not _beyond_loss(report):
        raise endings.Unreachable(
            f"given up after {settings.drain_s:g} s, as not every client has a broker: {report.lost:,} accepted messages have "
            f"not come, {report.unknown:,} have no outcome; they may still be there ({run.plight()})"
        )
    if faults:
        raise endings.Refused("; ".join(faults))
    if not report.accepted:
        raise endings.Refused(f"nothing was verified, because no message was accepted: {run.plight()}")
    if undrained:
        raise endings.Refused(f"messages are missing, and none arrived for {settings.drain_s:g} s: {run.plight()}")


def _beyond_loss(report: Report) -> bool:
    """Whether the report has a fault that the return of a broker could not repair."""
    return bool(report.altered or report.reordered or report.unexpected or report.unexplained)


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
