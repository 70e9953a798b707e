"""The accounting, without clients, clocks or files: `tally.py` sets of numbers, `checker.py` the check of each message,
`measures.py` gaps and latencies, `bodies.py` ids and bodies of messages.
"""
