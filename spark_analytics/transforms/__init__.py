"""DataFrame in, DataFrame out: one topic a file, the same functions for batch and stream.

Read in this order: `parse` (text to typed lines, bad ones named), `partials` (the additive state that everything else is summed
from), `expected` (who should have said something, and when), `windows` (percentiles, silence, status), `failovers`, `quality`.
"""
