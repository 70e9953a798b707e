"""spark-submit with one wheel: a Python that has Spark and click, but not us, in a folder that is not the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from spark_analytics import demo_data
from spark_analytics.store import Store
from tests.spark_analytics.conftest import START_MS

ROOT = Path(__file__).parents[2]
PROPERTIES = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.hadoop.fs.defaultFS": "hdfs://nowhere.invalid:1/",  # a cluster's own file system, where nothing of ours lies
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""As those of a session for short jobs."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (made,) = folder.glob("understudy-*.whl")
    return made


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages of a Python that has only what a user of spark-submit has: Spark, what it needs, and click."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    wanted, done = ["click", "pandas", "pyarrow", "pyspark"], set()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        done.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # wanted for another Python or system
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
        wanted += [re.split(r"[^\w.-]", text)[0] for text in distribution.requires or () if "extra ==" not in text]
    return packages


def environment(bare: Path, **more: str) -> dict[str, str]:
    """What of ours a process may see: where Java is, and that Python."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
    return kept | {"PYSPARK_PYTHON": str(bare.parents[2] / "bin" / "python"), "SPARK_LOCAL_IP": "127.0.0.1"} | more


def properties(log: Path) -> dict[str, str]:
    """What Spark's own log of a run says of how it was set."""
    for line in log.read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        if event["Event"] == "SparkListenerEnvironmentUpdate":
            return dict(event["Spark Properties"])
    raise AssertionError("the run has told nothing of its settings")


def test_one_wheel_is_enough_for_spark_submit_whose_settings_win(tmp_path: Path, wheel: Path, bare: Path) -> None:
    telemetry, here = tmp_path / "telemetry", tmp_path / "here"
    answers = demo_data.write(telemetry, demo_data.Shape(START_MS, seconds=120, queues=1))
    for folder in (here, tmp_path / "log"):
        folder.mkdir()
    shutil.copy(wheel, here)
    with zipfile.ZipFile(wheel) as files:
        (here / "qpid_lag.py").write_bytes(files.read("cli/lag/qpid_lag.py"))
    settings = PROPERTIES | {"spark.eventLog.dir": (tmp_path / "log").as_uri()}
    command = [str(bare / "pyspark" / "bin" / "spark-submit"), "--master", "local[1]", "--name", "nightly"]
    command += ["--driver-memory", "700m", "--driver-java-options", JAVA_OPTIONS]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--py-files", wheel.name, "qpid_lag.py", "stream", "--input", "../telemetry", "--output", "kept"]
    done = subprocess.run(
        [*command, "--available-now"], cwd=here, env=environment(bare), capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    lines = sum(len(path.read_text().splitlines()) for path in telemetry.iterdir())
    assert Store(here / "kept").load().counters["lines"] == lines, "the executors' Python took the source from the wheel alone"
    (log,) = (tmp_path / "log").iterdir()
    told = properties(log)
    for name, value in {"spark.master": "local[1]", "spark.app.name": "nightly", "spark.driver.memory": "700m"}.items():
        assert told[name] == value, name
    assert told["spark.sql.shuffle.partitions"] == "3"
    assert told["spark.sql.session.timeZone"] == "UTC", "what figures rest on is set all the same"

    asked = ["-m", "cli.lag.qpid_lag", "summarise", "--input", "kept", "--format", "json", "--output", "page.html"]
    alone = environment(bare, PYTHONPATH=wheel.name, SPARK_HOME=str(bare / "pyspark"))
    done = subprocess.run(
        [alone["PYSPARK_PYTHON"], *asked], cwd=here, env=alone, capture_output=True, text=True, check=False, timeout=280
    )
    assert (done.returncode, done.stderr) == (0, ""), (
        "not a word of Spark's, whose log is told to be quiet by a file in the wheel"
    )
    assert [row["gap_ms"] for row in json.loads(done.stdout)["failovers"]] == [row["gap_ms"] for row in answers["failovers"]]
    assert "</html>" in (here / "page.html").read_text()
    assert [path.name for path in here.iterdir() if "page" in path.name] == ["page.html"], "it appears whole"
