"""AMQP 1.0 over proton's C engine: bytes in, batches of events out, and back. No sockets and no clocks live here.

Start with `engine.py`, which drives proton's C engine, and `links.py`, what hangs on it: these two alone call C functions.
`management_node.py` turns management messages into maps.
"""
