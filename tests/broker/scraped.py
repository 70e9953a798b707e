"""What a page of metrics says, read as Prometheus reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
_SAMPLE = re.compile(r'^(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (-?[\d.e+-]+)$')


def read(text: str) -> dict[str, dict[str, float]]:
    """Metric → labels as they stand → value. Every family has its two lines of head, once, and its samples behind them."""
    found: dict[str, dict[str, float]] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in found, f"{family} comes twice"
            found[family] = {}
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
            assert line.split()[3] == ("counter" if family.endswith("_total") else "gauge")
        else:
            sample = _SAMPLE.match(line)
            assert sample is not None, line
            assert sample[1] == family, f"{sample[1]} stands among the samples of {family}"
            assert (sample[2] or "") not in found[family], line
            found[family][sample[2] or ""] = float(sample[3])
    return found


def promtool(*words: str, text: str = "") -> None:
    """Prometheus' own judgement."""
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is needed (deploy/bootstrap.sh test; Debian's package prometheus has it)"
    done = subprocess.run([tool, *words], cwd=RULES, input=text, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
