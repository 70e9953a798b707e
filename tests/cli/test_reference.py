"""The reference page has every command and every option, because this says so when it has not."""

from __future__ import annotations

import re

import click
import pytest

from broker import settings as broker_settings
from broker.options import CONFIG, markdown
from cli.commands import qpid_config, qpid_drain, qpid_ha, qpid_resource_manager, qpid_route, qpid_scaledown, qpid_stat
from cli.options import CONNECTION
from cli.verify import qpid_verify
from ha import settings as ha_settings
from resource_manager.settings import OPTIONS
from tests.cli.running import ROOT, run

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()
COMMON = {"--help", "--version", "--format", "--ha-admin"}


def options(command: click.Command) -> set[str]:
    """The long options of a command, and of its commands."""
    found = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
    return found.union(*(options(one) for one in command.commands.values())) if isinstance(command, click.Group) else found


@pytest.mark.parametrize(
    "module",
    [qpid_config, qpid_drain, qpid_ha, qpid_route, qpid_scaledown, qpid_stat, qpid_resource_manager, qpid_verify],
    ids=lambda module: str(module.__name__),
)
def test_every_option_is_in_the_reference(module: object) -> None:
    command = module.command  # type: ignore[attr-defined]
    documented = set(re.findall(r"--[a-z][a-z-]*", PAGE))
    assert sorted(options(command) - COMMON - documented) == []


@pytest.mark.parametrize("command", ["qpid-config", "qpid-drain", "qpid-ha", "qpid-route", "qpid-scaledown", "qpid-stat"])
def test_the_help_fits_into_60_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a terminal wraps it in the middle of a word."""
    monkeypatch.setenv("COLUMNS", "60")
    assert [line for line in run(command, "--help").out.splitlines() if len(line) > 60] == []


def test_every_command_of_qpid_ha_is_in_the_reference() -> None:
    assert [name for name in qpid_ha.command.commands if f"`{name}" not in PAGE] == []


def test_the_tables_of_options_are_those_of_the_code() -> None:
    """Breaks when a default changes and the page does not."""
    assert markdown([*CONNECTION, CONFIG]).strip() in PAGE
    assert markdown([*OPTIONS, CONFIG]).strip() in PAGE
    assert markdown([*qpid_verify.OPTIONS, CONFIG]).strip() in PAGE
    assert markdown([*broker_settings.OPTIONS, *ha_settings.OPTIONS, CONFIG]).strip() in PAGE
