"""The commands, by product: `commands` (the broker, the resource manager and the administration commands), `drain`, `scaledown`,
`verify`, `demo` and `lag`. They share their exit codes (`endings`), connections (`options`) and output (`output`).
"""
