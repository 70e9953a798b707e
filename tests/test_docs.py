"""The reference pages say what the code does."""

import re
import tomllib
from pathlib import Path

from broker import options
from broker import settings as broker_settings
from ha import settings as ha_settings

ROOT = Path(__file__).parent.parent


def test_every_option_of_qpidd_stands_in_its_page_as_the_code_has_it() -> None:
    page = (ROOT / "docs/reference/options.md").read_text()
    for table in (broker_settings.OPTIONS, ha_settings.OPTIONS):
        assert options.markdown(table) in page, "make it anew: python -m tests.test_docs"


def test_the_index_of_decisions_names_each_of_them() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    pages = sorted(path.name for path in (ROOT / "docs/adr").glob("0*.md"))
    assert pages, "there are decisions"
    assert [name for name in pages if name not in index] == []


def test_every_limit_names_a_test_that_is_there() -> None:
    named = re.findall(r"`(test_\w+)` \|$", (ROOT / "docs/reference/limits.md").read_text(), re.M)
    there = {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 40
    assert [name for name in named if name not in there] == []


def test_links_between_pages_lead_somewhere() -> None:

    broken = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []


def test_the_architecture_names_every_folder_and_nothing_that_is_not_there() -> None:

    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    rows = [row for row in re.findall(r"^\| (`[^|]*`) \|[^|]*\| ([^|]*) \|$", page, re.M) if "/" in row[0] or ".py" in row[1]]
    named = {folder: re.findall(r"`([^`]*)`", files) for cell, files in rows for folder in re.findall(r"`([^`]*)`", cell)}
    packages = {
        str(init.parent.relative_to(ROOT))
        for top in ("broker", "ha", "resource_manager", "cli", "spark_analytics", "telemetry")
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert set(named) == packages
    together = {"ha/amqp": ["replication_link.py"], "ha/net": ["peers.py"]}  # one row for both
    missing = [f"{folder}/{file}" for folder, files in (named | together).items() for file in files]
    assert [path for path in missing if not (ROOT / path).exists()] == []


def _write() -> None:
    page = ROOT / "docs/reference/options.md"
    text = page.read_text()
    head = text[: text.index("## The broker")]
    broker, ha = options.markdown(broker_settings.OPTIONS), options.markdown(ha_settings.OPTIONS)
    page.write_text(f"{head}## The broker\n\n{broker}\n## Its cluster\n\n{ha}")


if __name__ == "__main__":
    _write()


def test_prose_is_wrapped_at_100_columns() -> None:
    """Code, tables, headings and what cannot be broken (a link, a line that a broker writes) may be longer."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "changelog.d").glob("*.md")]
    long = []
    for page in pages:
        in_code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                in_code = not in_code
            whole = re.fullmatch(r"\s*(?:[-*] )?(?:`[^`]+`|!?\[[^\]]+\]\([^)]+\))\S*", line)
            if len(line) > 100 and not (in_code or whole or line.startswith(("|", "#"))):
                long.append(f"{page.relative_to(ROOT)}:{number}")
    assert long == []


def test_wheels_and_images_are_named_after_the_release_that_they_are_of() -> None:
    """Breaks when a command of a page names a file that `pip wheel` does not make."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    named = re.compile(r"(?:understudy-|understudy:|qpid-lag:)(\d+\.\d+\.\d+)")
    files = [path for folder in ("docs", "deploy") for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".yaml")]
    found = [(path.name, each) for path in files for each in named.findall(path.read_text())]
    assert len(found) > 10
    assert [each for each in found if each[1] != version] == []
