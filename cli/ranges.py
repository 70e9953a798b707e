"""Ranges of numbers, and sizes, on command lines."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click

from broker.options import size


class FloatRange(click.FloatRange):
    """click's, but without `nan`, which click takes for a number of every range, and without `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Click's."""
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


class Bytes(click.IntRange):
    """A number of bytes, read as those of a daemon's options (`broker.options.size`), up to the largest that AMQP can carry."""

    _read = staticmethod(size(0, (1 << 63) - 1))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Click's."""
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
