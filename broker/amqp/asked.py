"""What a peer asks of one terminus of a link. Source: AMQP 1.0 parts 3.5.3 (source) and 3.5.4 (target)."""

from __future__ import annotations

from typing import Any

from cproton_ffi import lib

from broker.amqp.data import Condition, encoded_of, names_of, text_of
from broker.core import values
from broker.core.filters import Filter, filters_of


class Asked:
    """The properties that a peer requests for one terminus of a link (part 3.5.3, 3.5.4)."""

    __slots__ = (
        *("address", "capabilities", "coordinator", "copy", "dynamic", "encoded_filters", "exists", "filters", "keep_s"),
        *("properties", "timeout_s"),
    )

    def __init__(self, pointer: Any) -> None:
        kind = lib.pn_terminus_get_type(pointer)
        self.exists = kind != lib.PN_UNSPECIFIED
        self.coordinator = kind == lib.PN_COORDINATOR
        self.address = text_of(lib.pn_terminus_get_address(pointer))
        self.dynamic = bool(lib.pn_terminus_is_dynamic(pointer))
        self.copy = lib.pn_terminus_get_distribution_mode(pointer) == lib.PN_DIST_MODE_COPY
        self.encoded_filters = encoded_of(lib.pn_terminus_filter(pointer))
        self.filters = _filters_in(self.encoded_filters)
        self.capabilities = names_of(lib.pn_terminus_capabilities(pointer))
        self.properties = _filters_in(encoded_of(lib.pn_terminus_properties(pointer))) if self.dynamic else []
        """Of the dynamic node that is to be made, in the form of filters."""
        self.keep_s = _keep_s(pointer)
        """Seconds for which it must exist after its link has ended. 0: for ever; None: it ends with its link."""


def _keep_s(pointer: Any) -> int | None:
    """See `Asked.keep_s`. A durable terminus without an expiry policy is kept for ever: proton's default is to expire with the
    session, which a client that requests durability does not mean."""
    policy, timeout_s = lib.pn_terminus_get_expiry_policy(pointer), int(lib.pn_terminus_get_timeout(pointer))
    if policy == lib.PN_EXPIRE_NEVER:
        return 0
    if timeout_s:
        return timeout_s
    durable = lib.pn_terminus_get_durability(pointer) != lib.PN_NONDURABLE
    return 0 if durable and policy != lib.PN_EXPIRE_WITH_LINK else None


def _filters_in(encoded: bytes) -> list[Filter]:
    try:
        return filters_of(encoded) if encoded else []
    except values.BadValue as error:
        raise Condition("amqp:decode-error", f"a filter cannot be read: {error}") from None
