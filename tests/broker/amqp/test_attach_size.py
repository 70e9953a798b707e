"""The bound of an attach's size, against frames that proton has made."""

from __future__ import annotations

import random
from typing import Any, cast

import proton
import pytest
from cproton_ffi import lib

from broker.amqp.attach_size import attach_bytes, refusal_bytes
from broker.amqp.data import Condition
from broker.amqp.receiver import Kept, Receiver
from tests.broker.amqp.pairs import Proton

POLICIES = tuple(getattr(proton.Terminus, f"EXPIRE_WITH_{name}") for name in ("LINK", "SESSION", "CONNECTION"))
NAMES = (1, 20, 255, 256, 300)


def symbols(*names: str) -> Any:
    return proton.Array(cast(Any, proton.UNDESCRIBED), proton.Data.SYMBOL, *map(proton.symbol, names))


def frames(peer: Proton) -> list[bytes]:
    """Those that the server has to send."""
    data, found = b"".join(peer.server.engine.take_output()), []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_an_attach_is_never_larger_than_its_bound_and_not_much_smaller(seed: int) -> None:
    chosen = random.Random(seed)
    peer = Proton().open()
    peer.server.attaches_later = True
    name = "n" * chosen.choice(NAMES)
    ours = chosen.random() < 0.5
    link = peer.session.sender(name) if ours else peer.session.receiver(name)
    for terminus in (link.source, link.target):
        if chosen.random() < 0.2:
            terminus.type = proton.Terminus.UNSPECIFIED
            continue
        terminus.address = "\u20ac" * chosen.choice((0, 1, 85, 86, 100))
        terminus.dynamic = chosen.random() < 0.3
        terminus.timeout = chosen.choice((0, 1, 255, 256))
        terminus.durability = chosen.choice((0, 1, 2))
        terminus.expiry_policy = chosen.choice((*POLICIES, proton.Terminus.EXPIRE_NEVER))
        names = ["c" * chosen.choice((1, 30)) for _ in range(chosen.choice((0, 1, 3)))]
        terminus.capabilities.put_object(symbols(*names))
        terminus.properties.put_object({proton.symbol("p" * chosen.choice((1, 300))): chosen.choice((1, "a", "b" * 300))})
    values = ("x", "y" * 255, "y" * 256, 5, 300)
    filters = {proton.symbol(f"{each}"): chosen.choice(values) for each in range(chosen.choice((0, 1, 20)))}
    link.source.filter.put_object(filters)
    link.source.outcomes.put_object(symbols("amqp:accepted:list"))
    link.source.distribution_mode = chosen.choice((0, 1, 2))
    link.snd_settle_mode, link.rcv_settle_mode = chosen.choice((0, 1, 2)), chosen.choice((0, 1))
    link.open()
    peer.to_server(peer.output())
    (end,) = peer.server.links
    if isinstance(end, Receiver) and chosen.random() < 0.5:
        end.kept = Kept(4_000_000, [(1, 1 << 40)] * chosen.choice((0, 1, 50)))
    end.accept(max_message_size=chosen.choice((0, 1 << 40)))
    bound = attach_bytes(end.handle, lib.pn_link_source(end.handle), lib.pn_link_target(end.handle))
    (frame,) = frames(peer)
    assert len(frame) <= bound <= len(frame) + 80


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("size", NAMES)
def test_an_attach_before_a_detach_is_never_larger_than_its_bound(size: int, ours: bool) -> None:
    peer = Proton().open()
    peer.server.refusal = Condition("amqp:not-found", "it is not there")
    link = peer.session.sender("n" * size) if ours else peer.session.receiver("n" * size)
    link.open()
    peer.to_server(peer.output())
    (end,) = peer.server.links
    bound = refusal_bytes(end.handle, lib.pn_link_target(end.handle) if end.is_sender else lib.pn_link_source(end.handle))
    attach, _ = frames(peer)
    assert len(attach) <= bound <= len(attach) + 80
