"""The one exception that is meant for people: one line about what happened, to what, and what to do."""

from __future__ import annotations


class Refused(Exception):
    """The job cannot be done as requested. Its text is one line that says what to do; the command prints it and exits with 1."""


class WrongUsage(Refused):
    """An option has a value that is never right. The command exits with 2."""
