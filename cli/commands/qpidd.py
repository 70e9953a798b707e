"""`qpidd`: the broker, standalone or a member of a cluster.

Life of the process: read the settings, take the port, lock the store, replay the logs, serve until SIGTERM or SIGINT, then shut
down: notify the clients, sync the journal, mark the store as clean. With `--drain-to`, SIGTERM first drains the broker
(`cli.drain.on_sigterm`). If it cannot start, it prints one line on stderr and ends with exit code 1 (2: wrong usage).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from broker import settings as broker_settings
from broker.net import reactor as monotonic
from broker.options import CONFIG, Option, SettingsError
from cli.output import end_unwritten, note, open_streams
from cli.start import take_interrupts
from ha import settings as ha_settings


class _Fatal(Exception):
    """The broker cannot start or continue; the text is the line to print."""


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every option of the tables, as text: the tables' parsers read them, wherever they come from."""
    table: list[Option] = [*broker_settings.OPTIONS, *ha_settings.OPTIONS, CONFIG]
    for option in reversed(table):
        shown = f" [default: {option.default_text}]" if option.default_text else ""
        function = click.option(*option.flags, option.field, metavar=option.metavar, default=None, help=option.help + shown)(
            function
        )
    return function


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@_with_options
@click.version_option(package_name="understudy", prog_name="qpidd")
def command(**command_line: str | None) -> None:
    """Run an AMQP 1.0 broker: standalone, or with --ha-cluster yes as a member of a cluster.

    Every option can also be given in the file of --config, as `key=value`, or in the environment, as QPID_KEY.
    """
    try:
        broker, ha = ha_settings.read(command_line, note=lambda line: note(f"qpidd: {line}"))
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    reactor = monotonic.install()
    # Only now may modules be imported that bring the reactor with them.
    from ha.service import CannotStart, Process, run

    def prepare(process: Process) -> None:
        if broker.drain_to is not None:
            from cli.drain.on_sigterm import DrainOnSigterm

            DrainOnSigterm(process)

    try:
        status = run(reactor, broker, ha, prepare)
    except SettingsError as error:  # a file that an option names cannot be used
        raise click.UsageError(str(error)) from None
    except CannotStart as error:
        raise _Fatal(str(error)) from None
    sys.exit(status)


def main() -> None:
    """The console script."""
    open_streams()
    try:
        take_interrupts()
        command.main(standalone_mode=False)
    except click.UsageError as error:
        note(f"qpidd: {error.format_message()}")
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        end_unwritten("qpidd", error)
    except _Fatal as error:
        note(f"qpidd: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
