"""A Spark session that starts quickly, stays quiet and needs no network; or the session that spark-submit has prepared.

The module looks for Java before Spark, so that a missing or old Java gives one sentence instead of a stack of exceptions.
Spark's own logging is limited to ERROR, and the standard error of the Java process goes to a file, which is named if the process
fails to start.

Under spark-submit, Java already runs with the caller's resources and logging. Then this module only sets what the meaning of
summaries depends on, and what makes them fast, if the caller has not set it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import spark_analytics
import telemetry
from spark_analytics import archive
from spark_analytics.errors import Refused
from spark_analytics.locations import cause

JAVA_MINIMUM: Final = 17
MASTER: Final = "local[2]"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable with the port of spark-submit's Java, in the programs that it starts."""
_GONE_S: Final = 2.0
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


Work = Literal["short", "long", "stream"]
"""The purpose of a session. The optimising compilers of Java and Spark are worth their time in a long job, but not in a short
one. A stream makes the same small plans again and again, and its work is outside of them: Java's compiler is worth it there,
Spark's is not."""


def start(
    master: str | None = None, *, app: str = "qpid-lag", heap: str = "1g", work: Work = "short", stays: bool = False
) -> SparkSession:
    """A session on `master`; if that is None, on the master of spark-submit, or on this machine. One that `stays` makes so many
    short jobs that Java's optimising compiler is worth it.

    Refused when there is no suitable Java, or Spark does not start.
    """
    if SUBMITTED in os.environ:
        return _submitted(master, work)
    master = master or MASTER
    java = java_version()
    local = master.startswith("local")
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    compiler = ["-XX:TieredStopAtLevel=1"] if work == "short" and not stays else _LATE_OPTIMISING
    collector = "-XX:+UseSerialGC" if work == "short" else "-XX:+UseParallelGC"
    methods = "-XX:-DontCompileHugeMethods" if work != "short" or stays else ""
    logging = f"-Dlog4j2.configurationFile={_own('log4j2.properties')}"
    java_options = " ".join([*compiler, collector, methods, *_ROOM, archive.options(java), logging])
    settings = {
        "spark.driver.extraClassPath": _usual_jars(),
        "spark.app.name": app,
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": heap,
        "spark.driver.extraJavaOptions": java_options,
    }
    if local:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    with _standard_error_in_a_file() as log:
        try:
            spark = _session(settings | _quick(work) | MEANING)
        except Exception as error:
            raise Refused(f"Spark did not start on {master}: {_first_line(error)}; its own words are in {log}") from error
    return _ready(spark)


_LATE_OPTIMISING: Final = [
    f"-XX:Tier4{name}Threshold={10 * usual}"
    for name, usual in {"Invocation": 5_000, "MinInvocation": 600, "Compile": 15_000, "BackEdge": 40_000}.items()
]
"""Java optimises a method only after ten times as many calls as by default. Code that runs for each of a million lines reaches
that at once. The planner and the compiler of Spark's generated code seldom do; otherwise the optimiser spends most of its time on
them.
"""
_ROOM: Final = ("-XX:MetaspaceSize=256m", "-XX:ReservedCodeCacheSize=240m")
"""Spark's classes need 140 MB: by default, Java collects the whole heap four times, each time before it makes room for more of
them. The code of five small reports takes 32 of the 48 MB that the quick compiler has by default, and that of a dashboard's
worker would not fit. Neither is used before it is needed.
"""
_USUAL_JARS: Final = (
    *("scala-library", "spark-catalyst", "spark-core", "spark-sql", "spark-sql-api", "spark-common-utils", "spark-unsafe"),
    *("hadoop-client-api", "hadoop-client-runtime", "jackson-core", "jackson-databind", "jackson-module-scala"),
)


def _usual_jars() -> str:
    """The jars that contain nearly all used classes, as the beginning of a class path. For each class, Java searches Spark's 280
    jars one after the other, which takes a tenth of the processor time of a short job.
    """
    jars = Path(_find_spark_home(), "jars")
    return os.pathsep.join(str(jar) for name in _USUAL_JARS for jar in sorted(jars.glob(f"{name}[-_][0-9]*.jar")))


_NEEDLESS: Final = {
    "org.apache.spark.sql.catalyst.optimizer": """
        ConstantPropagation DecimalAggregates EliminateAggregateFilter EliminateOuterJoin GenerateOptimization
        InferFiltersFromGenerate InjectRuntimeFilter LikeSimplification NullDownPropagation OptimizeOneRowPlan
        OptimizeUpdateFields OptimizeWindowFunctions PruneFilters PushDownLeftSemiAntiJoin PushExtraPredicateThroughJoin
        RemoveRedundantAliases ReorderAssociativeOperator ReplaceNullWithFalseInPredicate SimplifyBinaryComparison
        UnwrapCastInBinaryComparison""",
    "org.apache.spark.sql.execution.datasources": "PullOutVariantExtractions PushVariantIntoScan SchemaPruning",
}
"""Rules of Spark's optimiser that find nothing to improve in the plans of a summary, or nothing that is worth their time in a
short job. They take a sixth of the time of all rules.
"""
MEANING: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.files.ignoreCorruptFiles": "true"}
"""Settings that the figures of a summary depend on, whoever starts Spark."""


def _needless() -> str:
    """The rules of _NEEDLESS, as Spark wants to have them."""
    return ",".join(f"{package}.{rule}" for package, rules in _NEEDLESS.items() for rule in rules.split())


def _quick(work: Work) -> dict[str, str]:
    """Settings that make this kind of job fast. They change no figure."""
    compiled = work == "long"
    return {
        # One partition needs no further shuffle and half of the tasks. In a short job, tasks cost more than rows.
        "spark.sql.shuffle.partitions": "1" if work == "short" else "2",
        # A short job spends its time on planning and compiling. A long one saves time by them.
        "spark.sql.adaptive.enabled": str(compiled).lower(),
        # A summary has more columns, and longer methods, than Spark and Java compile by default.
        "spark.sql.codegen.maxFields": "400",
        "spark.sql.codegen.wholeStage": str(compiled).lower(),
        "spark.sql.codegen.factoryMode": "FALLBACK" if compiled else "NO_CODEGEN",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        # The bytes that a Python worker gets at once stay in the processor's cache.
        "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
        # A line of Parquet has a hundred times its size in memory: by the size of files, Spark would broadcast millions of lines.
        # What is small is said where it is joined, or found out at run time.
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": "10m",
        # Without a reset, Java keeps what it has read back from disk: by default a hundred batches of rows.
        "spark.serializer.objectStreamReset": "1",
        # Each read lists the files again, but Spark would keep the list: half a megabyte for a thousand files, 250 MB in all.
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        # Spark would check a plan after each rule, and format each plan for a web interface that is switched off.
        "spark.sql.lightweightPlanChangeValidation": "false",
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.debug.maxToStringFields": "1",
        "spark.sql.optimizer.excludedRules": _needless() if work == "short" else "",
        # PySpark would send Java the place in our code for each of some thousand columns.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Java would record a stack for each of these columns, only to name our method in a message of an error.
        "spark.sql.dataFrameQueryContext.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": Path(tempfile.gettempdir(), "qpid-lag-warehouse").as_uri(),
    }


def _submitted(master: str | None, work: Work) -> SparkSession:
    """A session in the Java that spark-submit has started. Refused when that Spark does not start."""
    try:
        SparkContext._ensure_initialized()
        _stop_left_behind()
        given = {key for key, _ in SparkConf().getAll()}
        settings = {key: value for key, value in _quick(work).items() if key not in given} | MEANING
        if master is not None:
            settings["spark.master"] = master
        spark = _session(settings)
    except Exception as error:
        raise Refused(f"Spark did not start as spark-submit was told: {_first_line(error)}; see what it wrote above") from error
    if "spark.sql.shuffle.partitions" not in given and not str(spark.sparkContext.master).startswith("local["):
        spark.conf.set("spark.sql.shuffle.partitions", str(max(2, spark.sparkContext.defaultParallelism)))
    return _ready(spark)


def _stop_left_behind() -> None:
    """Stop the session of an earlier process in the same Java that was killed: Java has room for only one."""
    java: Any = SparkContext._jvm
    left = java.org.apache.spark.sql.SparkSession.getDefaultSession()
    if SparkContext._active_spark_context is None and left.isDefined():
        left.get().stop()


def _session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _ready(spark: SparkSession) -> SparkSession:
    """The session. Our code for Spark's Python workers is sent there by value, so that only the driver's machine needs this
    package.

    Spark passes `--py-files` on only if their names end in .zip, .egg or .jar, and the worker that plans a streaming Python
    source looks for them in a folder that stays empty (4.3).
    """
    for package in (spark_analytics, telemetry):
        register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    _know_classes()
    for form in ("short", "long"):  # otherwise Spark walks the stack at each step of each plan to find its caller
        spark.sparkContext.setLocalProperty(f"callSite.{form}", "qpid-lag")
    # When Java ends, each thread that waits for an answer would log it. `ends` reports it once.
    logging.getLogger().addHandler(logging.NullHandler())
    for context in ("DataFrame", "SQL"):  # PySpark would write Java's whole stack to standard error. `ends` tells the reason.
        PySparkLogger.getLogger(f"{context}QueryContextLogger").disabled = True
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return spark


class _Known:
    """A Java class whose members are looked up only once."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._java, name)
        setattr(self, name, found)
        return found


_USUAL_CLASSES: Final = ("functions", "org.apache.spark.sql.functions", "PythonUtils")


def _know_classes() -> None:
    """Keep the Java classes that PySpark looks up by name for every column, a thousand times in a summary. For a name without a
    package Java searches all of Spark's jars, which took a fifth of the planning time.
    """
    java: Any = SparkContext._jvm
    for name in _USUAL_CLASSES:
        setattr(java, name, _Known(getattr(java, name)))


@contextmanager
def ends(spark: SparkSession) -> Iterator[None]:
    """Stop the session at the end. Refused with Spark's reason when Spark fails or its Java process has ended."""
    try:
        yield
    except (PySparkException, *_LOST) as error:
        raise Refused(why(error)) from None
    finally:
        stop(spark)


def cancel(spark: SparkSession) -> None:
    """Cancel all that a session does now, from another thread, even if its Java process has ended."""
    with suppress(*_LOST):
        spark.sparkContext.cancelAllJobs()


def stop(spark: SparkSession) -> None:
    """Stop a session, even if its Java process has ended."""
    with suppress(*_LOST):
        spark.stop()


_LOST: Final = (Py4JError, ConnectionError, EOFError)
"""Raised when Java does not answer; the first one also when Java answers with an exception."""


def why(error: Exception) -> str:
    """The text for an exception of Spark. If its Java process has ended, only this fact is useful."""
    if isinstance(error, _LOST) and has_lost_java():
        return "Spark's Java process has ended, killed or out of memory: see that there is room for it, and start again"
    return f"Spark failed: {cause(error)}"


def has_lost_java() -> bool:
    """Whether Java's process has ended, or ends now. False if spark-submit has started it."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_S)
        return True
    return False


def _wheel() -> Path | None:
    """The archive that this program was loaded from; None if it is installed."""
    loader: Any = __spec__.loader
    archive_of = getattr(loader, "archive", None)
    return Path(archive_of) if archive_of else None


def _own(name: str) -> str:
    """The address of a file beside this one, in a folder or in an archive, in Java's form."""
    wheel = _wheel()
    if wheel is None:
        return Path(__file__).with_name(name).as_uri()
    return f"jar:{wheel.absolute().as_uri()}!/spark_analytics/{name}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _standard_error_in_a_file() -> Iterator[Path]:
    """Send the output of the Java process to a file: it inherits the descriptor that is open while it starts."""
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
