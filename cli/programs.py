"""Our programs by name, with the module of each. pyproject.toml installs them by `cli.start`."""

from __future__ import annotations

MODULES = {
    "qpidd": "cli.commands.qpidd",
    "qpid-config": "cli.commands.qpid_config",
    "qpid-drain": "cli.commands.qpid_drain",
    "qpid-ha": "cli.commands.qpid_ha",
    "qpid-lag": "cli.lag.qpid_lag",
    "qpid-passwd": "cli.commands.qpid_passwd",
    "qpid-resource-manager": "cli.commands.qpid_resource_manager",
    "qpid-route": "cli.commands.qpid_route",
    "qpid-scaledown": "cli.commands.qpid_scaledown",
    "qpid-stat": "cli.commands.qpid_stat",
    "qpid-verify": "cli.verify.qpid_verify",
}
"""Each module has a `main`, and can be run by itself (`python -m`)."""
