"""`qpid-lag demo-data`: telemetry of any size with known answers, and the answers."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import click

from cli.lag.shell import Command, gauge, refuse, wipe
from cli.output import Column, figures, show_json, table, text, window

_INTERRUPTED = 130
_SPARE_BYTES = 64 << 20


@click.command("demo-data", cls=Command)
@click.option(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Folder to write to. It must be new or empty.",
)
@click.option("--duration", metavar="10m|1d|7d", help="Length of the story, at least 120 intervals.  [default: 10m]")
@click.option("--seconds", type=click.IntRange(min=120), help="Length of the story in seconds.")
@click.option("--queues", type=click.IntRange(1, 5000), default=8, show_default=True, help="Number of replicated queues.")
@click.option("--backups", type=click.IntRange(2, 8), default=2, show_default=True, help="Number of backups.")
@click.option("--interval", metavar="1s|10s|60s", default="1s", show_default=True, help="Time between two samples.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same telemetry.")
@click.option("--start", metavar="TIME", help="Begin of the story.  [default: so that it ends now]")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
def demo_data(directory: str, form: str, **asked: Any) -> None:
    """Write telemetry with known answers, and print them.

    The story has a daily rise and fall of load and lag, a slow disk, a stalled backup, a silent backup, a failover, a planned
    switchover and an outage of all brokers. Some of its lines are lost, dropped, malformed or repeated.
    """
    from spark_analytics import demo_data as story
    from spark_analytics.errors import Refused

    folder = Path(directory)
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise Refused(f"{directory} is not empty: choose a new folder")
        shape = _shape(asked, int(time.time() * 1000))
        _check_room(folder, shape.about_lines * story.BYTES_PER_LINE)
        answers = story.write(folder, shape, progress=gauge())
    except Refused as refused:
        refuse(refused)
    except OSError as error:
        refuse(f"cannot write to {directory}: {error.strerror}; choose another --output")
    except KeyboardInterrupt:
        wipe()
        click.echo(f"qpid-lag: interrupted; {directory} holds a part of the story, without answers", err=True)
        raise SystemExit(_INTERRUPTED) from None
    wipe()
    if form == "json":
        show_json(answers)
        return
    for part in _described(answers):
        click.echo(part)


def _shape(asked: dict[str, Any], now_ms: int) -> Any:
    """The requested shape. WrongUsage, or a usage error, if it is not possible."""
    from spark_analytics.demo_data import FEWEST_SLOTS, Shape
    from spark_analytics.errors import WrongUsage
    from spark_analytics.times import MINUTE, moment_of, parse_span

    if asked["duration"] is not None and asked["seconds"] is not None:
        raise click.UsageError("give one of --duration and --seconds")
    length_ms = (asked["seconds"] or 600) * 1000 if asked["duration"] is None else parse_span(asked["duration"], "--duration")
    interval_ms = parse_span(asked["interval"], "--interval")
    if interval_ms > MINUTE or MINUTE % interval_ms:
        raise WrongUsage(f"--interval {asked['interval']} is not a whole fraction of a minute: use 1s, 10s or 60s, for example")
    if length_ms % interval_ms or length_ms // interval_ms < FEWEST_SLOTS:
        least = FEWEST_SLOTS * interval_ms // 1000
        raise WrongUsage(
            f"a story of {length_ms // 1000} s with a sample each {asked['interval']} is too short for all that happens, or no "
            f"whole number of intervals: at least {least} s, in whole {asked['interval']}"
        )
    start_ms = moment_of(asked["start"], now_ms, "--start") if asked["start"] else now_ms - length_ms
    if not 0 <= start_ms <= now_ms:
        what = f"--start {asked['start']}" if asked["start"] else f"the begin of a story of {length_ms // 1000} s"
        raise WrongUsage(f"{what} is not in the past, from 1970 on: choose another --start, or a shorter --duration")
    return Shape(
        start_ms // interval_ms * interval_ms, length_ms // 1000, asked["queues"], asked["seed"], asked["backups"], interval_ms
    )


def _check_room(folder: Path, nbytes: int) -> None:
    """Refused if the disk is too small. The check is before the work, not after it."""
    from spark_analytics.errors import Refused

    exists = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    free = shutil.disk_usage(exists).free
    if nbytes + _SPARE_BYTES > free:
        raise Refused(
            f"the story takes about {nbytes / 1e9:.1f} GB, and {exists} has {free / 1e9:.1f} GB free: "
            "choose another --output, a longer --interval, or fewer --queues"
        )


# ---- the output


def _amount(value: Any) -> str:
    return f"{value:,}"


def _ms(value: Any) -> str:
    return "silent" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.2f}".rstrip("0").rstrip(".")


def _share(value: Any) -> str:
    return f"{value:.2%}"


def _moment(value: Any) -> str:
    return str(value)[:19].replace("T", " ")


_BACKUPS = (
    Column("backup", "backup"),
    Column("samples", "samples", _amount, number=True),
    Column("missing", "missing", _amount, number=True),
    Column("stopped", "stopped", _amount, number=True),
    Column("over", "over_share", _share, number=True),
)
_LAGS = (
    Column("backup", "backup"),
    Column("p50Ms", "p50_ms", _ms, number=True),
    Column("p95Ms", "p95_ms", _ms, number=True),
    Column("p99Ms", "p99_ms", _ms, number=True),
    Column("maxMs", "max_ms", _ms, number=True),
    Column("stallMs", "longest_stall_ms", _ms, number=True),
    Column("silentMs", "longest_silence_ms", _ms, number=True),
)
_FAILOVERS = (
    Column("at", "at", _moment),
    Column("epoch", "epoch", number=True),
    Column("kind", "kind"),
    Column("primary", "to"),
    Column("gapMs", "gap_ms", _ms, number=True),
)
_TIMES = (
    Column("from", "from", _moment),
    Column("to", "to", _moment),
    Column("backup", "backup", text),
    Column("what", "what"),
)
_HOURS = (Column("hour", "from", _moment), Column("backup", "backup"), Column("over", "over_share", _share, number=True))
_WHAT = {
    "slow_disk": "its disk is slow",
    "stalled": "acknowledges nothing",
    "lost": "telemetry is lost",
    "stopped": "primary, killed",
    "silent": "nothing said of it",
    "outage": "no broker writes telemetry",
}


def _described(answers: dict[str, Any]) -> list[str]:
    """The answers as tables."""
    width = window()
    happened = [answers[name] | {"what": what} for name, what in _WHAT.items()]
    problems = ", ".join(f"{problem} {number}" for problem, number in answers["problems"].items())
    drops = ", ".join(f"{reason} {number:,}" for reason, number in answers["drops"]["reasons"].items())
    lines = [
        ("lines", f"{answers['lines']:,} in {answers['files']:,} files"),
        ("span", f"{_moment(answers['from'])} to {_moment(answers['to'])}, in UTC"),
        ("samples used", f"{answers['samples_used']:,}"),
        ("numbered, not there", f"{answers['holes']:,}"),
        ("of them dropped", f"{answers['drops']['lines']:,}: {drops}"),
        ("bad", f"{answers['bad_lines']}: {problems}"),
        ("there twice", str(answers["repeated_lines"])),
    ]
    objective_s = answers["objective_ms"] / 1000
    return [
        "Written; a truthful summary finds this:",
        figures(lines, width),
        table(f"Backups, the whole log (over: {objective_s:g} s behind, or not heard)", _BACKUPS, answers["backups"], width),
        table("Their lag (silent: the rank falls on a slot in which it was not heard)", _LAGS, answers["backups"], width),
        table("Failovers", _FAILOVERS, answers["failovers"], width),
        table("What happens when", _TIMES, sorted(happened, key=lambda row: str(row["from"])), width),
        table("The worst hour", _HOURS, answers["worst_hours"], width),
    ]
