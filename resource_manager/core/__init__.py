"""Decisions without I/O: the state of each broker (`detector`), the broker to promote (`promotion`), the interface of arbiters
(`arbiter`).
"""
