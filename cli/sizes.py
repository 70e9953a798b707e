"""Sizes on command lines."""

from __future__ import annotations

from typing import Any

import click

from broker.options import size


class Bytes(click.IntRange):
    """A number of bytes, read as those of a daemon's options (`broker.options.size`), up to the largest that AMQP can carry."""

    _read = staticmethod(size(0, (1 << 63) - 1))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Click's."""
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
