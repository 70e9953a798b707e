"""Selectors: conditions in the language of JMS (a subset of SQL-92) about a message's header, properties and application
properties.

`selected.selected(filters)` returns a `Selector`, which tells from the bytes of a message whether it matches. Start with
`grammar.py` (text to tree; errors with their position), then `program.py` (tree to Python code; the logic of NULL), `fields.py`
(reads the needed fields of a message), `usual.py` (reads most messages by regular expressions), `like.py` (patterns) and
`properties.py` (property filters). The limits are in `broker.core.limits`.
"""
