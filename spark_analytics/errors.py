"""The one exception that is meant for people: what happened, to what, and what to do about it, in one line."""

from __future__ import annotations


class Refused(Exception):
    """The job cannot be done as asked. Its text is one line that says what to do; the command prints it and exits with 1."""
