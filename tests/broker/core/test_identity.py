"""What a socket tells of its other end."""

from __future__ import annotations

import pytest

from broker.core.identity import Certificate, Socket


@pytest.mark.parametrize("address, host", [("10.0.0.1:5672", "10.0.0.1"), ("::1:5672", "::1"), ("unknown", "")])
def test_a_host_is_an_address_without_its_port(address: str, host: str) -> None:
    assert Socket(address).host == host


def test_a_socket_is_in_the_clear_and_shows_no_certificate_unless_it_says_so() -> None:
    assert (Socket("h:1").encrypted, Socket("h:1").certificate) == (False, None)
    assert Certificate("CN=ann").common_name == ""
