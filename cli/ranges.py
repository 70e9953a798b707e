"""Ranges of numbers on command lines. qpid-lag is started with it where only Spark is installed: it imports click alone."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click


class FloatRange(click.FloatRange):
    """click's, but without `nan`, which click takes for a number of every range, and without `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Click's."""
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found
