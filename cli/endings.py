"""How our commands end: exit codes, one line for an error, and never a traceback for an error of a user or broker.

0 done; 1 refused, or a check failed (`--expect`, `--is-primary`); 2 wrong usage; 3 cannot connect, or timed out; 75
(EX_TEMPFAIL) a drain is incomplete: run it again to continue.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import click

from broker.core.urls import BadUrl
from broker.net import reactor as monotonic
from broker.options import SettingsError
from cli.output import end_unwritten, note, open_streams
from cli.start import take_interrupts

DONE, REFUSED, USAGE, UNREACHABLE, UNFINISHED, INTERRUPTED = 0, 1, 2, 3, 75, 130

Result = TypeVar("Result")


class Refused(Exception):
    """The request was refused, or a check failed. The text is the line to print."""


class Unreachable(Exception):
    """No broker serves this client. The text is the line to print."""


def run(work: Callable[[Any], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work(reactor)` in its own reactor, and return its result or raise its error. Only once in a process."""
    reactor: Any = monotonic.install()
    from twisted.internet.defer import ensureDeferred
    from twisted.python.failure import Failure

    outcome: list[Any] = []

    def finish(result: Any) -> None:
        if reactor.running:  # otherwise a signal has stopped it, and this is only the end of our own connection
            outcome.append(result)
            reactor.stop()

    reactor.callWhenRunning(lambda: ensureDeferred(work(reactor)).addBoth(finish))
    reactor.run()
    if not outcome:  # a signal has stopped the reactor
        raise KeyboardInterrupt
    if isinstance(outcome[0], Failure):
        outcome[0].raiseException()
    result: Result = outcome[0]
    return result


def end(name: str, command: click.Command) -> NoReturn:
    """Run a console script to its end: the exit code is the result, and one line on stderr is the reason."""
    open_streams()
    try:
        take_interrupts()
        status = command.main(prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:  # the text of this error is the help
        click.echo(error.format_message())
        sys.exit(USAGE)
    except (click.UsageError, SettingsError, BadUrl) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        _say(name, f"{text} (see {name} --help)")
        sys.exit(USAGE)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except Refused as error:
        _say(name, str(error))
        sys.exit(REFUSED)
    except Unreachable as error:
        _say(name, str(error))
        sys.exit(UNREACHABLE)
    except BrokenPipeError:  # the reader has closed the pipe; the interpreter must not write to it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except OSError as error:
        end_unwritten(name, error)
    except Exception as error:
        sys.exit(_client_error(name, error))
    sys.exit(status or DONE)


def _client_error(name: str, error: Exception) -> int:
    """The exit code for a broker's refusal or absence; anything else is our own bug and is raised again."""
    from broker.client import ClientError, ManagementError

    if not isinstance(error, ClientError):
        raise error
    _say(name, str(error))
    return REFUSED if isinstance(error, ManagementError) else UNREACHABLE


def _say(name: str, text: str) -> None:
    """Print one line on stderr, even if the text has several."""
    note(f"{name}: {' '.join(text.split())}")
