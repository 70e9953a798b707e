"""AMQP 1.0 over proton's C engine: bytes to batches of events, and back. There are no sockets and no clocks here.

Start with `engine.py`, which drives proton's C engine, and `links.py`, with what all links have. `receiver.py` has the links
for incoming messages, `sender.py` those for outgoing ones, and `pieces.py` the large messages that go out by the piece.
`asked.py` reads what a peer asks of a link's end. `gathering.py` assembles messages that arrive in several frames, and
`arrived_pack.py` keeps a delivery with several messages until all have an outcome. `data.py` reads and writes values and
error conditions in proton's memory. Only these and `scratch.py`, their memory, call C functions. A delivery is a pointer
here, and an integer everywhere else (`broker.core.links`). `management_node.py` converts management messages to maps.
"""
