"""Options of a daemon from three sources: the command line, `QPID_*` environment variables, and a file of `key=value` lines.

Life of an option: a table of `Option`s says everything about it once: name, how it is read, default, help. `gather` takes the
texts that the sources gave, in the order in which qpidd lets them win (command line, environment, file, then the default), and
reads each by its option's parser. From the same table come the command's click options and the page in docs/reference.

Invariants: a text is read by one parser wherever it came from, and an error names its source (`--port`, `QPID_PORT`,
`/etc/qpidd.conf:3`); a wrong value is an error even where a stronger source hides it; nothing here keeps or shows the text of an
option that is marked `secret`; a password on the command line is an error, because others on the machine see it.

The file: one `key=value` a line, keys spelled as on the command line without the dashes; a key alone means `yes`; blank lines,
and what follows a `#` at the start of a line or after a space, are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from broker.core.sasl_client import MECHANISMS
from broker.core.urls import SSL, TCP, Url
from broker.secret_files import warnings

MAX_FILE_BYTES = 1024 * 1024
MAX_PASSWORD_BYTES = 4096

_COMMENT = re.compile(r"(^|\s)#.*")
_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])(?:i?b?)|b)?", re.IGNORECASE)
_UNIT = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class SettingsError(ValueError):
    """The settings are wrong: one line with the setting, its fault, and a correct value."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting.

    `parse` turns a text into the value, or raises ValueError with a text that completes "NAME: ...". `default` is a value, not a
    text. `aliases` are further spellings of the name (older ones, mostly). A `secret` is never shown.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    metavar: str
    help: str
    aliases: tuple[str, ...] = ()
    short: str = ""
    secret: bool = False
    hides: str = ""
    """What is secret in the file that it names: "its password is"; "" if nothing is."""

    @property
    def field(self) -> str:
        """The name of the settings' field: `max-message-size` is `max_message_size`."""
        return self.name.replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its spellings on a command line, the main one first."""
        return (*(f"--{name}" for name in self.names), *((f"-{self.short}",) if self.short else ()))

    @property
    def environment(self) -> tuple[str, ...]:
        """Its spellings in the environment, the main one first."""
        return tuple(f"QPID_{name.upper().replace('-', '_')}" for name in self.names)

    @property
    def default_text(self) -> str:
        """The default as a person would write it; "" when there is none."""
        return show(self.default)


@dataclass(frozen=True, slots=True)
class _Given:
    """The text for an option, and its source."""

    text: str = field(repr=False)
    origin: str
    seen: bool = False
    """Whether it is on the command line, where other users of this machine can see it."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Keys of another program's file: ignored ones, with the reason, and refused ones, with the alternative. `note` gets a line
    for each ignored key in the file."""

    without_effect: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    note: Callable[[str], None] = lambda line: None


NOTHING_FOREIGN = Foreign()


def gather(
    options: Iterable[Option],
    command_line: Mapping[str, str | None],
    environ: Mapping[str, str],
    foreign: Foreign = NOTHING_FOREIGN,
    note: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The value of each option by its field name.

    `command_line` maps field names to the texts given there (None: not given), `config` among them if it was. SettingsError when
    a text cannot be read, the file has a key that no option has, or the file itself cannot be read. `note` gets a line for each
    file with a secret that others may read.
    """
    table = tuple(options)
    from_environ = _from_environ((*table, CONFIG), environ)
    config = _given(CONFIG, command_line) or from_environ.get(CONFIG.name)
    from_file = dict(_from_file(_read(CONFIG, config), table, foreign)) if config is not None else {}
    values: dict[str, Any] = {}
    private: dict[Path, str] = {}
    for option in table:
        in_file = from_file.get(option.name)
        given = [one for one in (_given(option, command_line), from_environ.get(option.name), in_file) if one is not None]
        read = [_read(option, one) for one in given]
        values[option.field] = read[0] if read else option.default
        if read and option.hides:
            private[Path(given[0].text)] = option.hides
        if config is not None and in_file is not None and _is_secret(option, read[-1]):
            private[_read(CONFIG, config)] = "its password is"
    for line in warnings(private.items()):
        note(line)
    return values


def show(value: Any) -> str:
    """A value as a person would write it in a file or on a command line."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case int():
            for unit in ("g", "m", "k"):
                if value and value % _UNIT[unit] == 0:
                    return f"{value // _UNIT[unit]}{unit.replace('m', 'M').replace('g', 'G')}"
            return str(value)
        case tuple():
            return ",".join(map(show, value))
        case _:
            return str(value)


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", r"\|")


def markdown(options: Iterable[Option]) -> str:
    """The options as a table for docs/reference."""
    lines = ["| option | environment | default | meaning |", "|---|---|---|---|"]
    for option in options:
        flags = ", ".join(f"`{flag}`" for flag in option.flags)
        default = f"`{option.default_text}`" if option.default_text else ""
        cells = (f"{flags} `{_cell(option.metavar)}`", f"`{option.environment[0]}`", default, _cell(option.help))
        lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def way_to_extra(extra: str) -> str:
    """What to do when the packages of an extra are missing. It names no package of an index, where others may have our name."""
    wheel = f"understudy-VERSION-py3-none-any.whl[{extra}]"
    return f"install the extra {extra}: pip install '.[{extra}]' in the checkout, or pip install '{wheel}'"


# ---- where the texts come from


def _given(option: Option, command_line: Mapping[str, str | None]) -> _Given | None:
    text = command_line.get(option.field)
    return None if text is None else _Given(text, f"--{option.name}", seen=True)


def _from_environ(options: Iterable[Option], environ: Mapping[str, str]) -> dict[str, _Given]:
    """Empty variables count as not set. Variables that match no option belong to other programs (for example
    QPID_SSL_CERT_DB)."""
    found: dict[str, _Given] = {}
    for option in options:
        for variable in option.environment:
            text = environ.get(variable, "")
            if not text:
                continue
            if option.name in found and found[option.name].text != text:
                raise SettingsError(
                    f"{variable} and {found[option.name].origin} name the same option but differ: unset one of them"
                )
            found[option.name] = _Given(text, variable)
    return found


def _from_file(path: Path, options: Iterable[Option], foreign: Foreign) -> Iterator[tuple[str, _Given]]:
    by_name = {name: option for option in options for name in option.names}
    line_of: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        entry = _COMMENT.sub("", line).strip()
        if not entry:
            continue
        key, equals, text = (part.strip() for part in entry.partition("="))
        option = by_name.get(key)
        if option is None and key in foreign.without_effect:
            foreign.note(f"{path}:{number}: {key} has no effect: {foreign.without_effect[key]}")
            continue
        if option is None:
            way_out = f": {foreign.instead[key]}" if key in foreign.instead else nearest(key, by_name)
            raise SettingsError(f"{path}:{number}: there is no option {key!r}{way_out}")
        if option.name in line_of:
            raise SettingsError(f"{path}:{number}: {key} was given in line {line_of[option.name]} already: keep one of them")
        if not equals and option.parse is not yes_no:
            raise SettingsError(f"{path}:{number}: {key} needs a value: write {key}={option.metavar}")
        line_of[option.name] = number
        yield option.name, _Given(text if equals else "yes", f"{path}:{number}: {key}")


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"cannot read the configuration file {path}: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise SettingsError(f"{path} has more than {MAX_FILE_BYTES} bytes: it is not a configuration file")
    try:
        return [line.removesuffix("\r") for line in content.decode().split("\n")]  # other ends of lines may be in a password
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{number}: not UTF-8 text: is it a configuration file?") from None


def nearest(key: str, known: Iterable[str]) -> str:
    """`; did you mean 'X'?` for the known word that is most like this one; "" if none is like it."""
    near = get_close_matches(key.replace("_", "-").lower(), list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]!r}?" if near else ""


def _read(option: Option, given: _Given) -> Any:
    try:
        value = option.parse(given.text)
    except ValueError as error:
        raise SettingsError(f"{given.origin}: {'the value cannot be used' if option.secret else error}") from None
    if given.seen and _is_secret(option, value):
        raise SettingsError(
            f"{given.origin}: other users of this machine can see a password on a command line: give it in "
            f"{option.environment[0]}, "
            f"in the file that --config names, or in a file of its own{way_over_tls(value)}"
        )
    return value


def way_over_tls(value: Any) -> str:
    """The way out for `ssl:ann@host`, which is the user `ssl` with the password `ann`."""
    if isinstance(value, Url) and value.user in (SSL, TCP):
        return f"; for the transport {value.user}, write {value.user}: before the host, as in ann@{value.user}:host"
    return ""


def _is_secret(option: Option, value: Any) -> bool:
    return option.secret or (isinstance(value, Url) and bool(value.password))


# ---- parsers: a text in, a value out, or a ValueError that says what would do


def text(value: str) -> str:
    """Any text."""
    return value


def yes_no(value: str) -> bool:
    """yes or no, and the other words that qpidd takes for them."""
    match value.strip().lower():
        case "yes" | "true" | "on" | "1":
            return True
        case "no" | "false" | "off" | "0":
            return False
        case _:
            raise ValueError(f"{value!r} is neither yes nor no")


def one_of(*choices: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return parse


def number(at_least: int, at_most: int) -> Callable[[str], int]:
    """A whole number in this range."""

    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", value) or not at_least <= int(value) <= at_most:
            raise ValueError(f"{value!r} is not a whole number from {at_least} to {at_most}")
        return int(value)

    return parse


def size(at_least: int, at_most: int) -> Callable[[str], int]:
    """A number of bytes; k, M, G or T behind it, also with B, i or iB, stand for powers of 1024."""

    def parse(value: str) -> int:
        parts = _SIZE.fullmatch(value.strip())
        nbytes = int(parts[1]) * _UNIT[(parts[2] or "").lower()] if parts and len(parts[1]) <= 18 else -1
        if not at_least <= nbytes <= at_most:
            raise ValueError(
                f"{value!r} is not a size from {show(at_least)} to {show(at_most)}: write a whole number of bytes, or one with "
                "k, M, G or T behind it for powers of 1024, as in 512M"
            )
        return nbytes

    return parse


def seconds(at_least: float, at_most: float) -> Callable[[str], float]:
    """A time in seconds, fractions allowed."""

    def parse(value: str) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}", value) or not at_least <= float(value) <= at_most:
            raise ValueError(f"{value!r} is not a number of seconds from {at_least:g} to {at_most:g}")
        return float(value)

    return parse


def folder(value: str) -> Path:
    """A folder, `~` allowed; "" is refused."""
    return _path(value, "folder")


def file(value: str) -> Path:
    """A file, `~` allowed; "" is refused."""
    return _path(value, "file")


def password_file(value: str) -> str:
    """The first line of this file."""
    path = file(value)
    try:
        with path.expanduser().open("rb") as opened:
            line = opened.readline(MAX_PASSWORD_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except RuntimeError:
        raise ValueError(f"{path}: there is no home folder for `~`; give the full path") from None
    if len(line) > MAX_PASSWORD_BYTES:
        raise ValueError(f"the first line of {path} has more than {MAX_PASSWORD_BYTES} bytes: it is not a password")
    try:
        found = line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"the first line of {path} is not UTF-8 text: it is not a password") from None
    if not found:
        raise ValueError(f"there is no password in the first line of {path}")
    return found


def with_password(url: Url, password: str | None, name: str, others: Iterable[str] = ()) -> Url:
    """The URL with a password from elsewhere for its user; `name` is the option's that has the URL, or the argument's, in
    capitals. The password may be for the URLs of `others` too. SettingsError.
    """
    if password is None:
        return url
    if not url.user:
        names = " or ".join(map(shown_name, sorted({name, *others})))
        raise SettingsError(f"--password-file needs a user in {names}, as in ann@host")
    if url.password:
        raise SettingsError(f"{shown_name(name)} has a password already: leave it or --password-file out")
    return replace(url, password=password)


def shown_name(name: str) -> str:
    """An option's name with its dashes, or an argument's, which is in capitals."""
    return name if name.isupper() else f"--{name}"


SASL_MECHANISM = Option(
    "sasl-mechanism",
    one_of(*MECHANISMS),
    "",
    "MECH",
    f"{', '.join(MECHANISMS)}. Default: the strongest that the broker offers.",
)
"""For the logins of commands and daemons."""

PASSWORD_FILE = Option(
    "password-file",
    password_file,
    None,
    "FILE",
    "File whose first line is the password of the user in the URL.",
    hides="its password is",
)


CONFIG = Option("config", file, None, "FILE", "Read more options from FILE: one key=value on each line.")
"""Names the file, and hence cannot stand in it."""


def _path(value: str, what: str) -> Path:
    if not value.strip() or "\0" in value:
        raise ValueError(f"a {what} is needed")
    return Path(value)
