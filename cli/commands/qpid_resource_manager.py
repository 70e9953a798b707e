"""`qpid-resource-manager`: the daemon that promotes a backup when the primary has failed.

Life of the process: it reads the settings, connects to every broker (missing brokers are tried again and again), and
acts until SIGTERM or SIGINT. It keeps nothing on disk except telemetry, so it can be killed and started at any time.
Its log goes to stderr.

With `--witness` the cluster's witness runs in the same process, on the same reactor. It has its own folder
(`resource_manager.witness`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from broker.net import reactor as monotonic
from broker.options import CONFIG
from cli import endings
from cli.options import version_option
from cli.output import warn

if TYPE_CHECKING:
    from broker.log_levels import LogLevels
    from broker.settings import BrokerSettings
    from ha.service import Process
    from ha.settings import HaSettings

NAME = "qpid-resource-manager"
_REPEATED: dict[str, Callable[[Iterable[str]], str]] = {"priority": ",".join, "arbiter-option": shlex.join}
"""Options that may be repeated, and how their values become one text."""


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every option of the table, as text: the table's parsers read it, wherever it comes from."""
    from resource_manager.settings import OPTIONS

    for option in reversed([*OPTIONS, CONFIG]):
        shown = f" [default: {option.default_text}]" if option.default_text else ""
        function = click.option(
            *option.flags,
            option.field,
            metavar=option.metavar,
            default=None,
            multiple=option.name in _REPEATED,
            help=option.help + shown,
        )(function)
    return function


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@_with_options
@version_option(NAME)
def command(**options: Any) -> None:
    """Watch the brokers of a cluster. When there is no primary, ask the best backup to become it.

    Run one beside each broker; several do not conflict. Every option can also be given in the file of --config, as `key=value`,
    or in the environment, as QPID_KEY.
    """
    from broker.telemetry_files import must_take_files
    from resource_manager.settings import read

    for name, joined in _REPEATED.items():
        field = name.replace("-", "_")
        options[field] = joined(options[field]) or None
    settings = read(options, note=warn)
    if settings.telemetry_dir is not None:
        must_take_files(settings.telemetry_dir)
    reactor: Any = monotonic.install()
    # Only now may modules be imported that bring the reactor with them.
    from twisted.logger import FileLogObserver, FilteringLogObserver, LogEvent, formatTime, globalLogBeginner

    from broker.log_levels import LogLevels, text_of
    from resource_manager import witness
    from resource_manager.service import ResourceManager

    member = witness.read(settings, note=warn) if settings.witness else None

    def line(event: LogEvent) -> str:
        return f"{formatTime(event['log_time'])} {event['log_level'].name:5} {text_of(event)}\n"

    levels = None if member is None else LogLevels(member[0].log_enable)
    predicates = [] if levels is None else [levels.predicate]
    observer = FilteringLogObserver(FileLogObserver(sys.stderr, line), predicates)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    service = ResourceManager(reactor, settings)
    process = None if member is None or levels is None else _witness(reactor, member, levels)

    def hang_up() -> None:
        service.hang_up()
        if process is not None:
            process.hang_up()

    reactor.callWhenRunning(service.startService)
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    monotonic.on_hangup(reactor, hang_up)
    reactor.run()
    if process is not None and process.status:
        raise endings.Refused("the witness failed, so its daemon ends: the log has the reason")


def _witness(reactor: Any, member: tuple[BrokerSettings, HaSettings], levels: LogLevels) -> Process:
    """Start the witness. endings.Refused if it cannot start."""
    from ha.service import CannotStart
    from resource_manager import witness

    try:
        process = witness.start(reactor, *member)
    except CannotStart as error:
        raise endings.Refused(f"the witness cannot start: {error}") from None
    process.broker.administration.extensions["log"] = levels
    reactor.addSystemEventTrigger("before", "shutdown", process.stop)
    return process


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
