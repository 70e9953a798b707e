"""Fixtures of tests with real processes that several modules share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the clients that others wrote are compiled and installed, each of them once (`tests/system/programs.py`)."""
    return tmp_path_factory.mktemp("programs")
