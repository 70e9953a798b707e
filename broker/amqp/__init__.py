"""AMQP 1.0 over proton's C engine: bytes in, batches of events out, and back. No sockets and no clocks live here.

Start with `engine.py`, which drives proton's C engine, and `links.py`, what hangs on it; with `scratch.py`, their memory, they
alone call C functions. A delivery is a pointer here, and an integer everywhere else (`broker.core.links`). `management_node.py`
turns management messages into maps.
"""
