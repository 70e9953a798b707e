"""`qpid-passwd`: edits the users' file of brokers. It has the users who may log in, with keys that are made from
passwords, and no passwords.

A password is read from a terminal, twice if it is new, or as one line from standard input. It is not an argument,
because other users of the machine can see arguments. The command connects to no broker; a running broker reads the file
again at SIGHUP.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import Any

import click

from broker import users_file
from broker.core import limits, users
from broker.core.users import HASHES, ITERATIONS, SALT_BYTES, BadPassword
from broker.users_file import BadUsersFile
from cli import endings, options
from cli.output import say, show_json

NAME = "qpid-passwd"
_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_USER = click.argument("name")


def _password(prompt: str, *, confirm: bool) -> str:
    """Read a password from the terminal, or the first line of standard input."""
    if sys.stdin.isatty():
        given = str(click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
    else:
        given = sys.stdin.readline(limits.MAX_PASSWORD_CHARS + 1).rstrip("\r\n")
    if len(given) > limits.MAX_PASSWORD_CHARS:
        raise endings.Refused(f"a password has at most {limits.MAX_PASSWORD_CHARS} characters")
    return _accepted(users.prepared, given, "password")


def _accepted(check: Callable[..., str], *given: str) -> str:
    try:
        return check(*given)
    except BadPassword as error:
        raise endings.Refused(str(error)) from None


def _read(file: Path) -> dict[str, users.KeysOf]:
    try:
        return users_file.checked(file, users_file.read(file))
    except FileNotFoundError:
        raise endings.Refused(f"there is no file {file}") from None
    except BadUsersFile as error:
        raise endings.Refused(str(error)) from None


def _change(file: Path, edit: Callable[[str], str]) -> None:
    try:
        users_file.change(file, edit)
    except BadUsersFile as error:
        raise endings.Refused(str(error)) from None


@click.group(context_settings=options.CONTEXT)
@options.version_option(NAME)
def command() -> None:
    """Edit the users' file of a broker (qpidd --users FILE)."""


@command.command()
@_FILE
@_USER
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS, limits.MAX_ITERATIONS),
    default=ITERATIONS,
    show_default=True,
    help="Iterations to derive the keys. A higher number protects a stolen file better and makes each login slower.",
)
def add(file: Path, name: str, iterations: int) -> None:
    """Add a user, or change its password. The file is created if it does not exist."""
    name = _accepted(users.name_of, name)
    password = _password(f"Password of {name}", confirm=True)
    keys = {each: users.derive(each, password, secrets.token_bytes(SALT_BYTES), iterations) for each in HASHES}
    _change(file, partial(users.with_line, name=name, line=users.line_of(name, keys)))


@command.command()
@_FILE
@_USER
def delete(file: Path, name: str) -> None:
    """Delete a user. Brokers close its connections when they read the file again, at SIGHUP."""
    if name not in _read(file):
        raise endings.Refused(f"there is no user {name} in {file}")
    _change(file, partial(users.with_line, name=name, line=None))


@command.command("list")
@_FILE
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def list_users(file: Path, form: str) -> None:
    """Print the names of all users, one on each line."""
    names = sorted(_read(file))
    if form == "json":
        show_json(names)
    else:
        for name in names:
            say(name)


@command.command()
@_FILE
@_USER
def check(file: Path, name: str) -> None:
    """Check a user's password. Exit code 1 if it is wrong."""
    found = _read(file)
    password = _password(f"Password of {name}", confirm=False)
    for mechanism, keys in found.get(name, {}).items():
        derived = users.derive(mechanism, password, keys.salt, keys.iterations)
        if compare_digest(derived.stored, keys.stored):
            return
    raise endings.Refused("name or password is wrong")


def main() -> Any:
    """The console script."""
    endings.end(NAME, command)


if __name__ == "__main__":
    main()
