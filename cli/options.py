"""Options that several commands share, and the connection that they describe.

`-b/--broker URL` names one broker, or all brokers of a cluster; then the tool finds the primary. A single backup refuses an
ordinary connection, unless --ha-admin is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.client import ManagementClient, find_primary
from broker.core import urls
from broker.core.sasl import EXTERNAL, PLAIN
from broker.core.urls import Address, Url
from broker.options import (
    PASSWORD_FILE,
    SASL_MECHANISM,
    Option,
    SettingsError,
    gather,
    seconds,
    shown_name,
    way_over_tls,
    with_password,
)
from broker.secret_files import warnings
from broker.tls_files import FILES, NO_TLS, TlsFiles
from cli.output import warn

if TYPE_CHECKING:
    from broker.net.credentials import Credentials

DEFAULT_BROKER = urls.parse("localhost")
NO_REPLICATION = (
    "queues are not replicated one by one: in a cluster every broker has those of --replicate all; to fetch the messages of "
    "another cluster's queue, use qpid-route queue add"
)
"""Why the old tools' option to copy a queue from a broker is refused."""
NO_ACL = "no ACL file is in force: every user may do everything (qpidd --acl-file FILE)"
"""What it means when a broker has no rules."""
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

FOR_EVER_S = 10 * 86_400.0
"""`--timeout 0`, as in Apache Qpid's tools: longer than a command lasts, and short enough for a timer of the system."""


def _timeout(text: str) -> float:
    try:
        return FOR_EVER_S if text == "0" else seconds(0.1, 3600)(text)
    except ValueError as error:
        raise ValueError(f"{error}, nor 0 for no limit") from None


CONNECTION = (
    Option(
        "broker",
        urls.parse,
        DEFAULT_BROKER,
        "URL",
        "Address of a broker, or addresses of all brokers of a cluster: [amqps:][user@]host[:port],...",
        short="b",
    ),
    Option("timeout", _timeout, 10.0, "SECONDS", "Time to wait for an answer. 0: no limit.", short="t"),
    SASL_MECHANISM,
    PASSWORD_FILE,
    *FILES,
)
"""Read from the command line, the environment (QPID_BROKER, ...) and the file that --config names, in this order."""


@dataclass(frozen=True, slots=True)
class Target:
    """The broker to connect to, and the options for it; times are in seconds."""

    url: Url
    timeout_s: float
    mechanism: str
    admin: bool
    tls: TlsFiles = NO_TLS
    others: tuple[Address, ...] = ()
    """Further members of its cluster, to ask when it no longer answers."""
    cluster: str = ""
    """The id of that cluster, if a broker has told it."""

    def credentials(self) -> Credentials | None:
        """The credentials for an address over TLS. SettingsError if a file is invalid. A long process calls this for each
        connection: files that have changed are read again at the second call after the change.
        """
        if all(address.transport != urls.SSL for address in self.url.addresses):
            return None
        found = _credentials(self.tls)
        found.look()
        return found

    async def connect(self, reactor: Any) -> ManagementClient:
        """A client of the broker of the URL; if there are several addresses, of the primary."""
        user, password, mechanism = self.url.user or None, self.url.password or None, self.mechanism or None
        credentials = self.credentials()
        if len(self.url.addresses) == 1:
            return await ManagementClient.connect(
                reactor,
                self.url.addresses[0],
                admin=self.admin,
                user=user,
                password=password,
                mechanism=mechanism,
                timeout_s=self.timeout_s,
                credentials=credentials,
            )
        return await find_primary(
            reactor,
            self.url.addresses,
            user=user,
            password=password,
            mechanism=mechanism,
            timeout_s=self.timeout_s,
            credentials=credentials,
        )

    def at(self, *addresses: Address) -> Target:
        """The same target as an administrator, at other addresses, which a broker has told. SettingsError if a password would
        go there in the clear that the user sends over TLS.
        """
        if self.mechanism == PLAIN and all(each.transport == urls.SSL for each in self.url.addresses):
            clear = next((each.name for each in addresses if each.transport != urls.SSL), "")
            if clear:
                raise SettingsError(
                    f"a broker names {clear} without TLS: with the mechanism PLAIN, the password is not sent there"
                )
        return replace(self, url=replace(self.url, addresses=addresses), admin=True)

    def each(self) -> list[Target]:
        """One target for each address of the URL."""
        return [replace(self, url=replace(self.url, addresses=(address,))) for address in self.url.addresses]


@cache
def _credentials(files: TlsFiles) -> Credentials:
    from broker.net.credentials import Credentials  # this import takes time

    return Credentials(files)


def target(
    command_line: dict[str, Any], *, admin: bool, name: str = "broker", beside: Mapping[str, Sequence[str]] | None = None
) -> Target:
    """Take the connection options out of a command's arguments. SettingsError if one is invalid. `name` is the name of the
    option with the URL, or of the argument, in capitals. `beside` has all URLs of the command by the names of their options: if
    one of them has a user, a URL without a user is that of a broker without a login, and gets no password and no mechanism; but
    with EXTERNAL, the certificate is the login at every address over TLS, and the password at those without.
    """
    import os

    given = {name: command_line.pop(name, None) for name in (*(option.field for option in CONNECTION), "config")}
    if name != "broker" and (url := _parsed(given["broker"] or "")).password:
        raise SettingsError(
            f"{shown_name(name)}: other users of this machine can see a password on a command line: write it into a file, and "
            f"name that with --password-file{way_over_tls(url)}"
        )
    try:
        values = gather(CONNECTION, given, os.environ, note=_warn_once)
    except SettingsError as error:
        why = str(error).removeprefix("--broker: ")
        if name == "broker" or why == str(error):
            raise
        raise SettingsError(f"{shown_name(name)}: {why}") from None
    url, beside = values["broker"], beside or {}
    if url.user and beside and values["sasl_mechanism"] == EXTERNAL and all(each.transport == urls.TCP for each in url.addresses):
        values["sasl_mechanism"] = ""
    if not url.user and any(_parsed(each).user for urls_of in beside.values() for each in urls_of):
        by_certificate = values["sasl_mechanism"] == EXTERNAL and all(each.transport == urls.SSL for each in url.addresses)
        values |= {"password_file": None, "sasl_mechanism": EXTERNAL if by_certificate else ""}
    url = with_password(url, values["password_file"], name, beside)
    files = TlsFiles.from_values(values)
    for line in warnings(files.private):
        _warn_once(line)
    return Target(url, values["timeout"], values["sasl_mechanism"], admin, files)


@cache
def _warn_once(line: str) -> None:
    """A command that lasts reads its options for each broker."""
    warn(line)


def _parsed(url: str) -> Url:
    """The URL. A bad one, which is an error where it is used, has no user here."""
    try:
        return urls.parse(url)
    except urls.BadUrl:
        return Url(())


def connection_options(function: Callable[..., Any], *, without: tuple[str, ...] = ()) -> Callable[..., Any]:
    """The options of CONNECTION, --config and --format, except those in `without`."""
    function = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Output format.")(
        function
    )
    function = click.option("--config", metavar="FILE", help="Read more options from FILE: one key=value on each line.")(function)
    for option in reversed([option for option in CONNECTION if option.field not in without]):
        shown = f" [default: {option.default_text.removeprefix('amqp:')}]" if option.default_text else ""
        function = click.option(*option.flags, option.field, metavar=option.metavar, default=None, help=option.help + shown)(
            function
        )
    return function


def version_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --version. The version is looked up only when it is asked for: that takes longer than most commands."""

    def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            from importlib.metadata import PackageNotFoundError, version

            try:
                found = version("understudy")
            except PackageNotFoundError:  # run from a checkout
                found = "(not installed)"
            click.echo(f"{name}, version {found}")
            context.exit()

    return click.option(
        "--version", is_flag=True, expose_value=False, is_eager=True, help="Show the version and exit.", callback=show
    )


def ha_admin_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option --ha-admin."""
    return click.option("--ha-admin", is_flag=True, help="Also connect to a backup.")(function)


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Read the store in this folder instead of asking a broker.",
)
