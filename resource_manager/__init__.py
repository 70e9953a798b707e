"""The daemon that detects a failed primary and asks a backup to take over. Start with `service.py`; the decisions are
in `core`.
"""
