"""What pytest loads wherever hangscope is installed: three options. Nothing else happens, and nothing else is imported,
unless `--hangscope` or the ini line `hangscope = true` asks for it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hangscope", "diagnosis of distributed tests that hang")
    group.addoption(
        "--hangscope",
        action="store_true",
        default=None,
        help="Capture and diagnose a test that outlives its timeout before it is ended; the verdict is in its failure.",
    )
    group.addoption(
        "--hangscope-dir",
        metavar="DIR",
        help="Where the evidence of hung tests goes.  [default: hangscope/ in the root directory]",
    )
    group.addoption(
        "--hangscope-timeout",
        metavar="SECONDS",
        type=float,
        help="A test that runs for longer is captured, and ended; for tests that have no timeout of pytest-timeout's.",
    )
    parser.addini("hangscope", "The same as --hangscope.", type="bool", default=False)
    parser.addini("hangscope_dir", "The same as --hangscope-dir.")
    parser.addini("hangscope_timeout", "The same as --hangscope-timeout.")


def pytest_configure(config: pytest.Config) -> None:
    if not (config.getoption("--hangscope") or config.getini("hangscope")):
        return
    from hangscope.pytest_plugin.hung_tests import CrashedWorkers, HungTests

    config.pluginmanager.register(HungTests(config), "hangscope-hung-tests")
    if config.pluginmanager.hasplugin("dsession") or config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(CrashedWorkers(config), "hangscope-crashed-workers")
