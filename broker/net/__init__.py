"""Sockets: the listening port, one object a connection, and the reactor they run on. Start with `connection.py`."""
