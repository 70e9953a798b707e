"""`qpid-resource-manager`: the daemon that promotes a backup when the primary has failed.

Life of the process: read the settings, connect to every broker (those that are missing are tried again and again), act, until
SIGTERM or SIGINT. It keeps nothing on disk besides telemetry, so it can be killed and started at will. Its log goes to stderr.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from broker.net import reactor as monotonic
from broker.options import CONFIG
from cli import endings
from cli.options import VERSION

NAME = "qpid-resource-manager"
_REPEATED: dict[str, Callable[[Iterable[str]], str]] = {"priority": ",".join, "arbiter-option": shlex.join}
"""Options that may be given several times, and how one text is made of several."""


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
@click.version_option(VERSION, prog_name=NAME)
def command(**options: Any) -> None:
    """Watch the brokers of a cluster, and ask the best backup to become the primary when there is none.

    Run one beside each broker, or one anywhere; several do no harm. Every option can also stand in the file named by --config, as
    `key=value`, or in the environment, as QPID_KEY.
    """
    from resource_manager.settings import read

    for name, joined in _REPEATED.items():
        field = name.replace("-", "_")
        options[field] = joined(options[field]) or None
    settings = read(options)
    reactor: Any = monotonic.install()
    # Only now may modules be imported that bring the reactor with them.
    from twisted.logger import FileLogObserver, LogEvent, formatEvent, formatTime, globalLogBeginner

    from resource_manager.service import ResourceManager

    def line(event: LogEvent) -> str:
        failure = f"\n{event['log_failure'].getTraceback()}" if "log_failure" in event else ""
        return f"{formatTime(event['log_time'])} {event['log_level'].name:5} {formatEvent(event)}{failure}\n"

    globalLogBeginner.beginLoggingTo([FileLogObserver(sys.stderr, line)], redirectStandardIO=False)
    service = ResourceManager(reactor, settings)
    reactor.callWhenRunning(service.startService)
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    monotonic.on_hangup(reactor, service.hang_up)
    reactor.run()


def main() -> None:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
