"""A Spark session that starts quickly, stays quiet and needs no network.

Java is looked for before Spark is, so that a missing or old one is a sentence and not a stack of exceptions. Spark's own
logging goes nowhere below ERROR, and what the Java process writes on its standard error goes to a file, whose name is told when
it fails to start.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_analytics import archive
from spark_analytics.errors import Refused

JAVA_MINIMUM: Final = 17
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
_INSTALL: Final = "install one (Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"


def java_version(environment: dict[str, str] | None = None) -> int:
    """The major version of the Java that Spark will use. Refused when there is none, or it is older than JAVA_MINIMUM."""
    environment = dict(os.environ) if environment is None else environment
    home = environment.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java", path=environment.get("PATH")) or "")
    if not java.is_file():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise Refused(f"Spark needs Java {JAVA_MINIMUM} or newer, and {where}: {_INSTALL}")
    text = _release_of(java) or _ask(java)
    found = re.search(r'"(\d+)(?:\.(\d+))?', text)
    if found is None:
        raise Refused(f"cannot tell the version of {java}: {_INSTALL}")
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if major < JAVA_MINIMUM:
        raise Refused(f"Spark needs Java {JAVA_MINIMUM} or newer, but {java} is Java {major}: {_INSTALL}")
    return major


def _release_of(java: Path) -> str:
    try:
        lines = (java.resolve().parent.parent / "release").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("JAVA_VERSION=")), "")


def _ask(java: Path) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"cannot run {java}: {error}: {_INSTALL}") from None


def start(master: str = "local[2]", *, app: str = "qpid-lag", heap: str = "1g", heavy: bool = False) -> SparkSession:
    """A session on `master`. `heavy` allows the optimising compilers, Java's and Spark's, which long jobs need and short ones
    pay for in vain.

    Refused when there is no suitable Java, or Spark does not start.
    """
    java = java_version()
    local = master.startswith("local")
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    compiler = [] if heavy else ["-XX:TieredStopAtLevel=1"]
    collector = "-XX:+UseParallelGC" if heavy else "-XX:+UseSerialGC"
    java_options = " ".join([*compiler, collector, archive.option(java), f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # Planning and compiling is what a small job spends its time on, and what a large one saves by.
        "spark.sql.adaptive.enabled": str(heavy).lower(),
        "spark.sql.codegen.wholeStage": str(heavy).lower(),
        "spark.sql.codegen.factoryMode": "FALLBACK" if heavy else "NO_CODEGEN",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "qpid-lag-warehouse"),
        "spark.driver.memory": heap,
        "spark.driver.extraJavaOptions": java_options,
    }
    if local:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName(app).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _standard_error_in_a_file() as log:
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise Refused(f"Spark did not start on {master}: {_first_line(error)}; its own words are in {log}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _standard_error_in_a_file() -> Iterator[Path]:
    """What the Java process prints goes to a file: it inherits the descriptor that is open while it starts."""
    sys.stderr.flush()
    saved = os.dup(2)
    descriptor, name = tempfile.mkstemp(prefix="qpid-lag-", suffix=".log")
    log = Path(name)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        yield log
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    log.unlink(missing_ok=True)  # only reached when all went well; the process keeps its open descriptor
