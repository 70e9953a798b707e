"""The repository itself: sizes, words, names, and that what is installed is what stands here.

What a linter can say is left to the linters (tox.ini); these are the rules that none of them knows.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor

from broker.net.reactor import MonotonicEPollReactor
from cli.programs import MODULES

ROOT = Path(__file__).parents[1]
PACKAGES = ("broker", "ha", "resource_manager", "cli", "spark_analytics")
MAX_LINES = 1000
TEXTS = {".py", ".md", ".toml", ".ini", ".sh", ".html", ".js", ".css", ".yaml", ".properties"}
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplemented(Error)?)\b")
_HIDDEN = {".git", ".tox", ".venv", "build", "dist", "__pycache__"}


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            if path.is_file() and not any(part in _HIDDEN or part.endswith("_cache") for part in parts):
                yield path


def modules(*folders: str) -> list[Path]:
    return [path for path in files(*folders) if path.suffix == ".py"]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads(text(ROOT / "pyproject.toml"))


def test_no_file_is_too_long_to_be_read_in_one_go() -> None:
    lines = {name(path): len(text(path).splitlines()) for path in modules(*PACKAGES, "tests")}
    assert len(lines) > len(PACKAGES)
    assert {path: n for path, n in lines.items() if n > MAX_LINES} == {}


def test_nothing_is_left_unfinished() -> None:
    this = Path(__file__).resolve()
    texts = [path for path in files(*PACKAGES, "tests", "docs", "deploy") if path.suffix in TEXTS and path.resolve() != this]
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(text(path).splitlines(), 1)
        if _UNFINISHED.search(line)
    ]
    assert found == []


def test_every_folder_says_what_lives_there() -> None:
    silent = [
        name(path) for path in modules(*PACKAGES) if path.name == "__init__.py" and not ast.get_docstring(ast.parse(text(path)))
    ]
    assert silent == []


def test_every_folder_of_modules_is_a_package_so_that_no_two_tests_share_a_name() -> None:
    folders = {path.parent for path in modules(*PACKAGES, "tests")}
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_every_test_checks_something() -> None:
    """A test has an assert, a `raises`, or calls something of its own that is named for checking."""
    idle = [
        f"{name(path)}:{node.lineno}: {node.name}"
        for path in modules("tests")
        if "def test_" in (written := text(path))
        for node in _statements(ast.parse(written))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_") and not _checks(node)
    ]
    assert idle == []


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within, but not the expressions in them: those are nine of ten nodes, and no function stands there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child
            yield from _statements(child)


def _checks(test: ast.AST) -> bool:
    return any(isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and _is_check(node.func)) for node in ast.walk(test))


def _is_check(function: ast.expr) -> bool:
    called = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    return bool(re.match(r"_?(raises|warns|fail|assert|check|expect|must|refuse|run_state_machine)", called))


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    marks = re.compile(r"\b(pytest\.(skip|xfail|importorskip)|mark\.(skip|skipif|xfail))\b")
    this = Path(__file__).resolve()
    assert [name(path) for path in modules("tests") if path.resolve() != this and marks.search(text(path))] == []


def test_no_error_names_a_package_of_an_index_that_may_be_another_projects() -> None:
    """On PyPI the name of this project is another one's."""
    assert [name(path) for path in modules(*PACKAGES) if "understudy[" in text(path)] == []


def test_every_command_is_in_the_reference_and_has_its_entry_point(project: dict[str, Any]) -> None:
    reference = text(ROOT / "docs/reference/cli.md")
    scripts = {command: f"cli.start:{command.replace('-', '_')}" for command in MODULES}
    assert scripts == project["project"]["scripts"]
    starts = ast.parse(text(ROOT / "cli/start.py"))
    started = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in starts.body if isinstance(node, ast.Assign)}
    for command, entry in scripts.items():
        assert started[entry.removeprefix("cli.start:")] == f"_script({command!r})"
        assert re.search(rf"^#+ .*\b{re.escape(command)}\b", reference, re.MULTILINE), (
            f"docs/reference/cli.md: no heading for {command}"
        )
        tree = ast.parse(text(ROOT / f"{MODULES[command].replace('.', '/')}.py"))
        assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, command


def test_every_fragment_of_the_changelog_is_of_a_kind_that_release_notes_have(project: dict[str, Any]) -> None:
    """Breaks when `towncrier build` passes over a fragment without a word."""
    kinds = "|".join(each["directory"] for each in project["tool"]["towncrier"]["type"])
    fragments = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert [each for each in fragments if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({kinds})\.md", each)] == []
    assert all(kind in text(ROOT / "changelog.d/README.md") for kind in kinds.split("|"))


def test_everything_in_the_packages_is_installed_with_them() -> None:
    """What is imported may be a wheel: a dashboard or a log configuration that it lacks fails at the user's, not here."""
    missing = []
    for package in PACKAGES:
        installed = resources.files(package)
        for path in files(package):
            parts = path.relative_to(ROOT / package).parts
            if path.suffix != ".pyc" and not installed.joinpath(*parts).is_file():
                missing.append(name(path))
    assert missing == []


def test_tests_run_on_the_reactor_that_brokers_run_on() -> None:
    assert isinstance(reactor, MonotonicEPollReactor)
