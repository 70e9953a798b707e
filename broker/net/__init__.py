"""Sockets: the listening ports, TLS, output, and the reactor they run on. Start with `listener.py`."""
