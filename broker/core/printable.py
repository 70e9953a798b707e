"""Texts of others, such as names and reasons of clients, in lines for people: in a log file or on a terminal. Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with an escape for each character that is not printable: control characters (\\x1b, \\n), line separators, and
    characters that change the direction of writing (\\u202e).
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
