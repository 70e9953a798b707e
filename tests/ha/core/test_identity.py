"""Who may speak as a member: nobody but the one whose certificate has its address."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.identity import Certificate
from ha.core.identity import objection_to_member

SUBJECT = "CN=broker1,O=Understudy"


def certificate(**told: object) -> Certificate:
    return Certificate(SUBJECT, **told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address, shown",
    [
        ("broker1.example:5671", certificate(dns_names=("other.example", "broker1.example"))),
        ("BROKER1.example.:5671", certificate(dns_names=("broker1.EXAMPLE",))),
        ("192.0.2.1:7000", certificate(addresses=("192.0.2.1",))),
        ("[2001:db8:0::1]:5671", certificate(addresses=("2001:db8::1",))),
        ("broker1:5671", certificate(common_name="broker1")),
        ("broker1:5671", certificate(uris=("amqps://broker1:5671",))),
        ("broker1:5671", certificate(uris=("amqps:broker1",))),
        ("broker1:5672", certificate(uris=("spiffe://broker1", "amqps://broker1:5671", "amqps://broker1:5672"))),
        ("broker1:5671", certificate(uris=("spiffe://x", "amqps://"), dns_names=("broker1",))),
    ],
)
def test_a_member_is_the_one_whose_certificate_has_its_address(address: str, shown: Certificate) -> None:
    assert objection_to_member(address, shown) == ""


@pytest.mark.parametrize(
    "address, shown, why",
    [
        ("broker1:5671", None, "presented no certificate"),
        ("broker1:5671", certificate(dns_names=("broker1",), serves=False), "a client's certificate"),
        ("broker1:5671", certificate(dns_names=("broker2",)), "presented the certificate of broker2"),
        ("broker1.example:5671", certificate(dns_names=("*.example",)), r"certificate of \*.example"),
        ("broker1:5671", certificate(common_name="broker1", dns_names=("broker2",)), "certificate of broker2"),
        ("broker1:5671", certificate(common_name="broker1", addresses=("192.0.2.1",)), "certificate of 192.0.2.1"),
        ("192.0.2.1:5671", certificate(addresses=("192.0.2.11",)), "which is not its own"),
        ("broker1:5671", certificate(uris=("amqps://broker1:5672",), dns_names=("broker1",)), "certificate of broker1:5672"),
        ("broker1:5671", certificate(), "certificate of no host"),
        ("a:b:c", certificate(dns_names=("a",)), "is not an address of a broker"),
    ],
)
def test_nobody_else_may_speak_as_it(address: str, shown: Certificate | None, why: str) -> None:
    """Breaks when a client, or another broker, can replicate as this member."""
    assert re.search(why, objection_to_member(address, shown))


@given(st.sampled_from("abcd"), st.sampled_from("abcd"), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_certificate_is_good_for_its_own_host_and_with_ports_for_its_own_port(
    mine: str, claimed: str, my_port: int, claimed_port: int, bound: bool
) -> None:
    shown = certificate(uris=(f"amqps://{mine}:{my_port}",)) if bound else certificate(dns_names=(mine,))
    is_it = mine == claimed and (not bound or my_port == claimed_port)
    assert (objection_to_member(f"{claimed}:{claimed_port}", shown) == "") is is_it
