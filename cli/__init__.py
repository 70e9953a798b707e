"""The commands, by product: `commands` (the broker, the resource manager, and the three that administer a cluster), `verify`,
`demo` and `lag`. What they share is how they end (`endings`), how they connect (`options`) and how they write (`output`).
"""
