"""Which arbiters there are, and how one that cannot be used is refused."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pytest

from broker.options import SettingsError
from resource_manager import arbiters
from resource_manager.arbiters.builtin import BuiltinArbiter
from resource_manager.arbiters.options import pairs
from resource_manager.core.arbiter import ArbiterSettings

ROOT = Path(__file__).parents[3]
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a plug-in where Python finds installed packages."""

    def install(name: str, source: str, module: str = "strange_arbiter", package: str = "strange") -> None:
        folder = tmp_path / package
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[understudy.arbiters]\n{name} = {module}\n")
        (folder / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, module, raising=False)
        invalidate_caches()

    return install


def make(name: str, **options: str) -> Any:
    return arbiters.make(name, ArbiterSettings("orders", options), None, "rm-1")


def test_a_strangers_plug_in_is_found_by_its_entry_point_and_told_its_options(install: Install) -> None:
    install("stars", "INTERFACE = 1\ndef make(settings, reactor, daemon): return settings.cluster, settings.options, daemon")
    assert arbiters.names() == [*arbiters.OWN, "stars"]
    assert make("stars", sign="leo") == ("orders", {"sign": "leo"}, "rm-1")


def test_ours_stand_among_the_entry_points_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][arbiters.GROUP] == arbiters.OWN
    assert isinstance(make("builtin"), BuiltinArbiter)


@pytest.mark.parametrize(
    "source, text",
    [
        ("1 / 0", "the arbiter stars cannot be loaded: ZeroDivisionError: division by zero (strange)"),
        ("import nothing_like_it", "cannot be loaded: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("INTERFACE = 7\nmake = print", "made for version 7 of the interface of arbiters, and this daemon has version 1"),
        ("INTERFACE = 1", "is not a plug-in: it has no INTERFACE and make"),
        ("INTERFACE = 'one'\nmake = print", "is not a plug-in"),
        (
            "INTERFACE = 1\ndef make(*_): raise ValueError('sign: must be\\none of twelve')",
            "^the arbiter stars: sign: must be one of",
        ),
        ("INTERFACE = 1\ndef make(*_): raise KeyError('x')", "the arbiter stars cannot be made: KeyError: 'x'"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_one_line(install: Install, source: str, text: str) -> None:
    install("stars", source)
    with pytest.raises(SettingsError, match=text.replace("(", r"\(").replace(")", r"\)")) as raised:
        make("stars")
    assert "\n" not in str(raised.value)


def test_ours_cannot_be_replaced_and_two_of_one_name_are_refused(install: Install) -> None:
    """Breaks when a package that somebody installs changes who decides without a word."""
    install("builtin", "INTERFACE = 1\nmake = print", module="thief_arbiter", package="thief")
    with pytest.raises(SettingsError, match="there are several arbiters 'builtin', of thief and understudy"):
        make("builtin")
    install("stars", "", module="one_arbiter", package="one")
    install("stars", "", module="two_arbiter", package="two")
    with pytest.raises(SettingsError, match="of one and two: uninstall one"):
        make("stars")


def test_an_unknown_arbiter_is_refused_with_those_that_exist() -> None:
    with pytest.raises(SettingsError, match="there is no arbiter 'zookeeper'; there are: builtin"):
        make("zookeeper")


def test_the_builtin_arbiter_takes_no_option() -> None:
    with pytest.raises(SettingsError, match="the arbiter builtin: builtin has no option 'speed', and takes none"):
        make("builtin", speed="high")


def test_options_are_pairs_quoted_as_in_a_shell() -> None:
    assert pairs("a=1 'b=two words'  c=x=y") == {"a": "1", "b": "two words", "c": "x=y"}
    for wrong, text in (
        ("a", "is not KEY=VALUE"),
        ("=1", "is not KEY=VALUE"),
        ("a=1 a=2", "given twice"),
        ("'a=1", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=text):
            pairs(wrong)
    with pytest.raises(ValueError, match="other users of this machine can see a password here: put it into a file"):
        pairs("password=tomato")
