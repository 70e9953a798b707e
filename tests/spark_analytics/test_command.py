"""qpid-lag for a person who errs: one line, what to do, the right exit code, and Spark not even started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cli.lag.qpid_lag import main
from cli.lag.shell import drawn, put
from spark_analytics import archive, locations, session, sources, tail
from spark_analytics.errors import Refused, WrongUsage
from spark_analytics.jobs import spans
from spark_analytics.session import java_version

NAMES_METHOD = "spark.sql.dataFrameQueryContext.enabled"
"""Whether an error names the method that made the column; a caller of spark-submit may want it."""


def run(*arguments: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(main, arguments)


def test_help_does_not_load_spark() -> None:
    code = (
        "import sys; from cli.lag.qpid_lag import main; main(['--help'], standalone_mode=False); "
        "sys.exit('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "summarise" in done.stdout


def test_a_command_that_there_is_not_and_the_version_are_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = run("sumarise", "--input", "x")
    assert (unknown.exit_code, unknown.stderr.count("\n")) == (2, 1)
    names = "dashboard, demo-data, keep, prepare, stream, summarise"
    assert f"there is no command 'sumarise': choose one of {names}" in unknown.stderr
    assert unknown.stderr.endswith("; did you mean 'summarise'?\n")
    assert run("--version").stdout.startswith("qpid-lag ")
    monkeypatch.setattr("spark_analytics.archive.make", _interrupted)
    prepare = run("prepare")
    assert (prepare.exit_code, prepare.stderr) == (
        130,
        "qpid-lag: interrupted; no class archive was made, summaries work without it\n",
    )


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_a_command_that_is_interrupted_says_so_in_a_line(tmp_path: Path) -> None:
    """While it looks at the folder: a file of it is a pipe, which is opened when somebody opens the other end."""
    os.mkfifo(tmp_path / "a.jsonl")
    command = [sys.executable, "-m", "cli.lag.qpid_lag", "summarise", "--input", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        with (tmp_path / "a.jsonl").open("w"):
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    assert (process.returncode, said) == (130, "qpid-lag: interrupted\n")


def test_without_sparks_packages_the_way_to_get_them_is_told(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('x', name='pyspark')")
    (tmp_path / "a.jsonl").write_text("{}\n")
    command = [sys.executable, "-m", "cli.lag.qpid_lag", "summarise", "--input", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (
        1,
        "qpid-lag: this needs Spark, and there is no pyspark here: install the extra spark: pip install '.[spark]' in the "
        "checkout, or pip install 'understudy-VERSION-py3-none-any.whl[spark]'\n",
    )


def test_a_batch_is_as_large_as_the_one_that_is_measured() -> None:
    said = " ".join(run("stream", "--help").output.split())
    assert f"[default: {tail.BYTES_PER_BATCH >> 20}; x>=0.01]" in said


def test_a_folder_that_is_not_there_an_empty_one_and_a_bad_window_are_refused_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    (tmp_path / "empty").mkdir()
    cases = {
        ("--input", str(tmp_path / "none")): "there is no folder",
        ("--input", str(tmp_path / "empty")): "holds no telemetry yet",
        ("--input", str(tmp_path), "--window", "7s"): "try 10s, 1m or 1h",
        ("--input", str(tmp_path), "--since", "yesterday"): "is not a time",
        ("--input", str(tmp_path), "--output", str(tmp_path / "no" / "p.html")): "create it first",
    }
    for arguments, sentence in cases.items():
        result = run("summarise", *arguments)
        assert result.exit_code == (2 if {"--window", "--since"} & {*arguments} else 1), arguments
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.output


def test_a_stream_that_cannot_be_is_refused_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    source, output = ("--input", str(tmp_path / "in")), ("--output", str(tmp_path / "out"))
    cases = {
        ("--input", str(tmp_path / "none"), *output): "there is no folder",
        (*source, "--output", str(tmp_path / "full")): "is not empty and no stream's folder: choose a new --output",
        (*source, "--output", str(tmp_path / "full" / "letter.txt" / "out")): "choose another --output",
        (*source, "--output", "s3a://bucket/lag"): "--output s3a://bucket/lag is a URL",
        (*source, *output, "--checkpoint", "hdfs:///lag"): "--checkpoint hdfs:///lag is a URL",
        (*source, *output, "--trigger", "often"): "--trigger often is not a length",
        (*source, *output, "--since", "yesterday"): "--since yesterday is not a time",
        (*source, *output, "--keep", "long"): "--keep long is not a length of time",
        (*source, *output, "--keep", "23h"): "--keep 23h is less than a day",
    }
    for arguments, sentence in cases.items():
        result = run("stream", *arguments)
        status = 2 if sentence.startswith("--") else 1  # the option itself is wrong
        assert (result.exit_code, sentence in result.stderr, result.stderr.count("\n")) == (status, True, 1), (
            arguments,
            result.stderr,
        )


@pytest.mark.parametrize("command", ["summarise", "stream"])
def test_a_folder_without_its_option_is_refused_with_the_option(command: str) -> None:
    result = run(command, "--output", "out", "telemetry")
    assert result.exit_code == 2
    assert result.stderr.startswith("qpid-lag: give the folder of telemetry as --input telemetry (see ")


@pytest.mark.parametrize("command", ["summarise", "stream"])
def test_one_source_is_read_and_not_none_or_two(command: str, tmp_path: Path) -> None:
    output = ("--output", str(tmp_path / "out"))
    for source in ((), ("--input", "x", "--kafka", "h:1"), ("--kafka", "h:1"), ("--input", "x", "--topic", "t")):
        assert run(command, *source, *output).exit_code == 2, source


def test_what_to_compare_with_is_said_once_and_whole() -> None:
    for asked in (("--compare-since", "1d"), ("--compare", "1d", "--compare-since", "2d", "--compare-until", "1d")):
        assert run("summarise", "--input", ".", *asked).exit_code == 2


def test_kafka_without_its_package_and_a_url_without_its_file_system_are_refused_in_one_line(spark: SparkSession) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: sources.read_kafka(spark, sources.Kafka("127.0.0.1:1", "t")),
            "spark-submit --packages org.apache.spark:spark-sql",
        ),
        (lambda: sources.read_lines(spark, "s3a://bucket/telemetry/"), "package org.apache.hadoop:hadoop-aws:3"),
        (lambda: sources.read_lines(spark, "nope://telemetry/"), "Spark cannot read nope://telemetry/: "),
        (lambda: sources.stream_lines(spark, "s3a://bucket/", files_per_batch=1), "--packages org.apache.hadoop:hadoop-aws"),
    ]
    for call, sentence in cases:
        with pytest.raises(Refused, match=sentence) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_of_an_error_the_line_is_told_that_says_what_happened() -> None:
    frames = 'Traceback (most recent call last):\n  File "a.py", line 3, in read\n    open(path)\n    ^^^^\n'
    cases = {
        "one\ntwo": "one",
        "An error occurred while calling o7.count.\n: java.io.IOException: full\n\tat x": "java.io.IOException: full",
        f"[STREAM_FAILED] Query ended: {frames}OSError: [Errno 5] x\n SQLSTATE: 38000\n=== Query ===": "OSError: [Errno 5] x",
        f"{frames}ValueError: y\n\nDuring it:\n\n{frames}spark_analytics.errors.Refused: do this": "do this",
        f"{frames}py4j.protocol.Py4JJavaError: An error occurred\n: java.io.IOException: full": "java.io.IOException: full",
        frames: "RuntimeError",
        "": "RuntimeError",
    }
    for text, line in cases.items():
        assert locations.first_line(RuntimeError(text)) == line


@pytest.mark.parametrize("named", ["true", "false"], ids=["Spark names the method", "and does not"])
def test_an_error_of_a_calculation_is_told_in_one_line_and_java_s_stack_is_not_written(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    usual = spark.conf.get(NAMES_METHOD)
    spark.conf.set(NAMES_METHOD, named)
    try:
        with pytest.raises(PySparkException) as failed:
            spark.range(1).select(F.lit(1) / F.col("id")).collect()
    finally:
        spark.conf.set(NAMES_METHOD, usual or "")
    told = session.why(failed.value)
    assert told.startswith("Spark failed: [DIVIDE_BY_ZERO] Division by zero.")
    assert "\n" not in told
    assert capsys.readouterr() == ("", "")


def test_the_bar_shows_how_much_of_the_running_stages_is_done() -> None:
    stages = [SimpleNamespace(numTasks=8, numCompletedTasks=4), SimpleNamespace(numTasks=2, numCompletedTasks=1)]
    assert drawn(stages) == f"[{'#' * 15}{'.' * 15}]  50%"
    assert drawn([]).endswith("  0%")


def test_a_wrong_option_is_a_question_of_usage() -> None:
    for words in (
        ["summarise"],
        ["stream"],
        *(["summarise", "--input", ".", *odd] for odd in (["--objective-ms", "-1"], ["--format", "xml"], ["--output", ""])),
        *([command, "--input", ""] for command in ("summarise", "dashboard")),
        ["stream", "--input", "", "--output", "o"],
        ["demo-data", "--output", ""],
    ):
        result = run(*words)
        assert (result.exit_code, result.stderr.count("\n"), result.stderr[:9]) == (2, 1, "qpid-lag:"), words


@pytest.mark.parametrize("release, major", [("17.0.21", 17), ("21", 21), ("1.8.0_402", 8)])
def test_the_version_of_java_is_read_without_starting_it(tmp_path: Path, release: str, major: int) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("")
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    if major >= 17:
        assert java_version({"JAVA_HOME": str(tmp_path)}) == major
    else:
        with pytest.raises(Refused, match="is Java 8: install one"):
            java_version({"JAVA_HOME": str(tmp_path)})


def test_an_archive_that_does_not_fit_any_more_adds_nothing_to_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = java_version()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = archive.path(java)
    kept.parent.mkdir()
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-launcher_*.jar")

    def launched(*options: str, jar: Path) -> subprocess.CompletedProcess[str]:
        """A small program, which for lack of arguments ends at once."""
        command = ["java", *options, "-cp", str(jar), "org.apache.spark.launcher.Main"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    launched(f"-XX:ArchiveClassesAtExit={kept}", jar=jar)
    assert kept.is_file()
    elsewhere = Path(shutil.copy(jar, tmp_path / "launcher.jar"))
    ended = launched(*archive.options(java).split(), jar=elsewhere)
    assert not ended.stdout


def test_a_missing_java_is_said_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no java on the PATH: install one"):
        java_version({"PATH": str(tmp_path)})
    with pytest.raises(Refused, match="has no bin/java"):
        java_version({"JAVA_HOME": str(tmp_path)})


def test_the_story_is_the_same_for_the_same_seed_and_never_written_over_something(tmp_path: Path) -> None:
    asked = ("demo-data", "--seconds", "120", "--queues", "2", "--start", "2026-01-05T08:00:00Z", "--output")
    first, second = run(*asked, str(tmp_path / "a")), run(*asked, str(tmp_path / "b"))
    assert first.exit_code == second.exit_code == 0
    assert "a truthful summary finds" in first.output
    bytes_of = [sorted((path.name, path.read_bytes()) for path in (tmp_path / name).iterdir()) for name in "ab"]
    assert bytes_of[0] == bytes_of[1]
    again = run(*asked, str(tmp_path / "a"))
    assert (again.exit_code, "is not empty" in again.stderr) == (1, True)


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """Breaks when `--output /dev/null` as root leaves a file in the place of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        put(pipe, b"a page")
        assert os.read(reader, 100) == b"a page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("text, ms", [("10s", 10_000), ("1m", 60_000), ("2h", 7_200_000), ("1d", 86_400_000)])
def test_lengths_are_read(text: str, ms: int) -> None:
    assert spans.parse_length(text) == ms


def test_moments_are_read_in_utc_unless_they_say_otherwise() -> None:
    assert spans.parse_moment("2026-01-05T08:00:00", 0, "--since") == 1_767_600_000_000
    assert spans.parse_moment("2026-01-05T09:00:00+01:00", 0, "--since") == 1_767_600_000_000
    assert spans.parse_moment("15m", 1_000_000, "--since") == 100_000
    assert spans.parse_moment("now", 7, "--since") == 7


@pytest.mark.parametrize("text", ["99999999999999999d", "0001-01-01", "0001-01-01T00:00:00+14:00", "1969-12-31T23:00:00Z"])
def test_a_moment_before_1970_is_1970(text: str) -> None:
    """Breaks when an age that was meant as "everything" overflows what Spark counts with."""
    assert spans.parse_moment(text, 1_767_600_000_000, "--since") == 0


@pytest.mark.parametrize("text", ["0s", "365251d", "99999999999999999d", "9" * 5000 + "d"])
def test_a_length_of_nothing_or_of_more_than_a_thousand_years_is_none(text: str) -> None:
    for read in (spans.parse_length, lambda text: spans.parse_span(text, "--compare")):
        with pytest.raises(WrongUsage, match="is not a length"):
            read(text)


def test_more_windows_than_anybody_can_use_are_refused() -> None:
    with pytest.raises(Refused, match="choose a longer --window"):
        spans.check_count(400 * spans.DAY, 10_000)


def test_steps_are_round_and_few() -> None:
    assert spans.step_for(600_000, at_most=360, multiple_of=1000) == 2000
    assert spans.step_for(600_000, at_most=120, multiple_of=2000) == 10_000
    assert spans.step_for(60_000, at_most=360, multiple_of=7000) == 7000
