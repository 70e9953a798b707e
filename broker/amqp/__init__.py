"""AMQP 1.0 over proton's C engine: bytes in, batches of events out, and back. No sockets and no clocks live here.

Start with `engine.py`: the one module that calls proton's C functions. `management_node.py` turns management messages into maps.
"""
