"""Texts of others in lines for people."""

from __future__ import annotations

from broker.core.printable import printable


def test_what_cannot_be_printed_is_escaped_and_all_else_stays() -> None:
    assert printable("Aufträge 注文 a\\b") == "Aufträge 注文 a\\b"
    assert printable("ä\n\x1b[2J\x9b\u2028\u202e\udc80") == "ä\\n\\x1b[2J\\x9b\\u2028\\u202e\\udc80"
