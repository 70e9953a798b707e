"""Broker URLs: what is written can be read, what is wrong is quoted, and passwords stay hidden."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from broker.core import limits, urls
from broker.core.urls import Address, BadUrl, Url

HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True) | st.ip_addresses(v=4).map(str)
ADDRESSES = st.builds(Address, HOSTS | st.ip_addresses(v=6).map(str), st.integers(1, 65535), st.sampled_from(["tcp", "ssl"]))
WHO = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    addresses=st.lists(ADDRESSES, min_size=1, max_size=5, unique_by=lambda address: address.name),
    user=st.just("") | WHO,
    password=st.just("") | WHO,
    scheme=st.sampled_from(["", "amqp:", "amqp://", "AMQP:"]),
    data=st.data(),
)
def test_what_is_composed_by_the_grammar_reads_back(
    addresses: list[Address], user: str, password: str, scheme: str, data: st.DataObject
) -> None:
    """Every part of a URL must arrive, in its order, whichever of the forms was chosen."""
    password = password if user else ""
    written = []
    for address in addresses:
        prefix = "ssl:" if address.transport == "ssl" else data.draw(st.sampled_from(["", "tcp:", "TCP:"]))
        host = f"[{address.host}]" if ":" in address.host else address.host
        usual = address.port == (5671 if prefix == "ssl:" else 5672)
        written.append(prefix + (host if usual and data.draw(st.booleans()) else f"{host}:{address.port}"))
    separator = data.draw(st.sampled_from("/:"))
    who = quote(user, safe="") + (separator + quote(password, safe="") if password else "") + "@" if user else ""
    assume(scheme or user.lower() not in ("amqp", "amqps"))
    url = urls.parse(scheme + who + ",".join(written))
    assert url == Url(tuple(addresses), user, password)
    assert urls.parse(str(url)) == Url(tuple(addresses), user, "***" if password else "")
    assert url.names == tuple(address.name for address in addresses)


@given(st.text(max_size=40) | st.text(st.sampled_from("amqps:/@,[]tcl.:0159%x "), max_size=40))
def test_any_text_is_a_url_or_is_refused_with_a_text(text: str) -> None:
    """A traceback must not be the answer to a slip of the keyboard."""
    with suppress(BadUrl):
        url = urls.parse(text)
        assert url.addresses
        assert urls.parse(str(url)).addresses == url.addresses


@pytest.mark.parametrize(
    "text, addresses",
    [
        ("b1", [("b1", 5672, "tcp", "b1:5672")]),
        (" b1 , b2:5673 ", [("b1", 5672, "tcp", "b1:5672"), ("b2", 5673, "tcp", "b2:5673")]),
        ("amqp:tcp:b1,ssl:b2", [("b1", 5672, "tcp", "b1:5672"), ("b2", 5671, "ssl", "b2:5671")]),
        ("amqps:b1,ssl:b2:1", [("b1", 5671, "ssl", "b1:5671"), ("b2", 1, "ssl", "b2:1")]),
        ("amqps://b1:5671", [("b1", 5671, "ssl", "b1:5671")]),
        ("amqp://[::1]:5673,[fe80::1]", [("::1", 5673, "tcp", "[::1]:5673"), ("fe80::1", 5672, "tcp", "[fe80::1]:5672")]),
        ("tcp:5672", [("5672", 5672, "tcp", "5672:5672")]),
        ("under_score.example.", [("under_score.example.", 5672, "tcp", "under_score.example.:5672")]),
    ],
)
def test_the_forms_that_people_write_are_understood(text: str, addresses: list[tuple[str, int, str, str]]) -> None:
    """The original's grammar and the common amqp:// form stand side by side in scripts."""
    assert [(a.host, a.port, a.transport, a.name) for a in urls.parse(text).addresses] == addresses


def test_a_password_is_shown_nowhere() -> None:
    """URLs end up in logs, in error texts and in the output of `qpid-ha query`."""
    url = urls.parse("amqp:guest/s%40cret@b1,ssl:b2")
    assert (url.user, url.password) == ("guest", "s@cret")
    assert str(url) == "amqp:guest/***@b1:5672,ssl:b2:5671"
    assert "cret" not in repr(url)
    for wrong in ("guest/s@cret@b1", "guest/s,cret@b1", "/secret@b1", "guest/secret@http://b1", "guest/secret@b1:x"):
        with pytest.raises(BadUrl) as caught:
            urls.parse(wrong)
        assert "cret@b1" not in str(caught.value)
        assert "secret@" not in str(caught.value).replace("guest/secret@broker1", "").replace("guest/sec%40ret@", "")


def test_a_user_without_a_password_is_enough() -> None:
    """External and anonymous mechanisms need none."""
    assert urls.parse("admin@b1") == Url((Address("b1"),), "admin")
    assert str(urls.parse("admin@b1")) == "amqp:admin@b1:5672"
    assert str(urls.parse("ssl,tcp:tcp:1")) == "amqp:tcp:ssl:5672,tcp:tcp:1", "hosts that are called as transports are"


@pytest.mark.parametrize(
    "text, fault",
    [
        ("", 'there is no host in the address "": write one as in amqp:broker1:5672,broker2:5672'),
        ("b1,,b2", 'there is no host in the address "": write one as in amqp:broker1:5672,broker2:5672'),
        ("ssl:", 'there is no host in the address "ssl:": write one as in amqp:broker1:5672,broker2:5672'),
        ("b1:", '"" in "b1:" is not a port: it is a number from 1 to 65535, as in amqp:broker1:5672,broker2:5672'),
        ("b1:0", '"0" in "b1:0" is not a port: it is a number from 1 to 65535, as in amqp:broker1:5672,broker2:5672'),
        ("b1:65536", '"65536" in "b1:65536" is not a port: it is a number from 1 to 65535, as in amqp:broker1:5672,broker2:5672'),
        ("b1:٣", '"٣" in "b1:٣" is not a port: it is a number from 1 to 65535, as in amqp:broker1:5672,broker2:5672'),
        ("[::1]:x", '"x" in "[::1]:x" is not a port: it is a number from 1 to 65535, as in amqp:broker1:5672,broker2:5672'),
        ("b 1", '"b 1" is not a host name: it has letters, digits, ".", "-" and "_", as in amqp:broker1:5672,broker2:5672'),
        (
            "b" * 256,
            f'"{"b" * 60}" is not a host name: it has letters, digits, ".", "-" and "_", as in amqp:broker1:5672,broker2:5672',
        ),
        ("::1", '"::1" has more than one ":": an IPv6 address stands in brackets, as in amqp:[::1]:5672'),
        ("[::1", '"[::1" is not an IPv6 address in brackets: write one as in amqp:[::1]:5672'),
        ("[b1]", '"[b1]" is not an IPv6 address in brackets: write one as in amqp:[::1]:5672'),
        ("[::1]5672", '"5672" may not follow the address in "[::1]5672": write a port as in amqp:[::1]:5672'),
        ("http://b1", '"http" is not a scheme of a broker URL: write amqp: or amqps:, as in amqp:broker1:5672,broker2:5672'),
        ("@b1", 'there is no user before the "@": write user/password@host, as in amqp:guest/secret@broker1:5672,broker2:5672'),
        (
            "amqps:tcp:b1",
            '"tcp:b1" asks for no encryption in a URL that begins with amqps: write amqp:tcp:b1 or amqps:b1',
        ),
        (
            "b1,b1:5672",
            '"b1:5672" is given twice: name each broker once, as in amqp:broker1:5672,broker2:5672',
        ),
        (",".join(f"b{i}" for i in range(65)), "a broker URL has at most 64 addresses, and this one has 65"),
        ("b" * (limits.MAX_URL_BYTES + 1), "a broker URL has at most 8192 bytes, and this one has more"),
    ],
)
def test_a_wrong_url_is_answered_with_the_wrong_part_and_a_right_example(text: str, fault: str) -> None:
    """Who mistypes one of six addresses wants to know which."""
    with pytest.raises(BadUrl) as caught:
        urls.parse(text)
    assert str(caught.value) == fault
