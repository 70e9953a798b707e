"""Any bytes, in the places where strangers' bytes come in: `python -m tests.fuzz` (`make fuzz`).

`targets` says what is read and what must hold, `__main__` runs it under libFuzzer, `corpus` holds inputs that reach far.
"""
