"""Prometheus' text format (version 0.0.4): families of metrics as lines.

A family is one metric: its name, its help text, its type, and a sample for each combination of labels. The format requires
all samples of a family together, after its two header lines.

Source: prometheus.io, "Exposition formats", text-based format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
GAUGE: Final = "gauge"
COUNTER: Final = "counter"
Sample = tuple[str, float | None]
"""Labels as text from `labels`, and the value. None: the value is not known, and the sample has no line."""


class Family(NamedTuple):
    """One metric. A counter's name ends with `_total`."""

    name: str
    meaning: str
    samples: Iterable[Sample]
    kind: str = GAUGE


def labels(names: Mapping[str, str]) -> str:
    """The labels as text after a metric's name; "" if there are none."""
    inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in names.items())
    return f"{{{inside}}}" if inside else ""


def lines(family: Family) -> Iterator[str]:
    """The family's header and samples; each line is without its line end."""
    yield f"# HELP {family.name} {family.meaning}"
    yield f"# TYPE {family.name} {family.kind}"
    for at, value in family.samples:
        if value is not None:
            yield f"{family.name}{at} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else f"{value:.12g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
