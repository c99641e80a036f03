"""A pytest plugin that writes how each test ended, so that a failed assertion is told from a crash.

Loaded with ``-p tests.nemesis.verdicts --verdicts FILE``; the file has one JSON object a line.
"""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ASSERTED = "asserted"
"""An assertion of the test failed, in the test or in its support."""

PASSED, SKIPPED, RAISED, BROKE = "passed", "skipped", "raised", "broke"
"""It passed; was skipped; another exception came out of it; it could not be loaded or set up."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verdicts", type=Path, required=True)


class Writer:
    """Writes one line per test, and per file that cannot be loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, node: str, ended: str, why: str = "") -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"node": node, "ended": ended, "why": why[:500]}) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and not report.skipped:
            error = call.excinfo.value
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            if call.when == "setup":
                self._write(item.nodeid, BROKE, f"setup: {why}")
            elif call.when == "teardown":
                self._write(item.nodeid, RAISED, f"teardown: {why}")
            else:
                self._write(item.nodeid, ASSERTED if is_assertion(error) else RAISED, why)
        elif call.when == "call":
            self._write(item.nodeid, SKIPPED if report.skipped else PASSED)
        elif report.skipped:
            self._write(item.nodeid, SKIPPED, str(report.longrepr))
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, BROKE, str(report.longrepr)[-400:])


def is_assertion(error: BaseException) -> bool:
    """Whether an exception is a test's own word that something is not as it must be."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_assertion(one) for one in error.exceptions)
    if not isinstance(error, AssertionError | pytest.fail.Exception):
        return False
    return not str(error).startswith("Timeout") and _raised_by_a_test(error)


def _raised_by_a_test(error: BaseException) -> bool:
    """Whether it came from a test or its support, and not out of the product."""
    traceback: Any = error.__traceback__
    files = []
    while traceback is not None:
        files.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    inner = next((name for name in reversed(files) if "/site-packages/" not in name), "")
    return "/worker/" not in inner and "/schemas/" not in inner


def pytest_configure(config: pytest.Config) -> None:
    path: Path = config.getoption("--verdicts")
    config.pluginmanager.register(Writer(path), "verdicts-writer")
