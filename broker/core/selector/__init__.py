"""Selectors: conditions in the language of JMS (and of SQL-92) about a message's header, properties and application properties.

`selected.selected(filters)` gives a `Selector`, which says of the bytes of a message whether it matches. Start with `grammar.py`
(text to tree; what is wrong, and where), then `program.py` (tree to Python code; the logic of NULL), `fields.py` (what is read of
a message) `like.py` (patterns) and `properties.py` (filters that are maps of
properties). The bounds are in `broker.core.limits`.
"""
