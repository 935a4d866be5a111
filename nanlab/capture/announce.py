"""A fault that ended a program which nobody looks at: a few lines on stderr, and a failed test."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanlab.trace import Trace


def announce(trace: Trace) -> None:
    """Print culprit, place and first fix to stderr, unless a notebook shows them."""
    fail_test(trace, sys._getframe(1))
    if not in_notebook():
        culprit = trace.culprit
        told = culprit.brief if culprit is not None else str(trace.guarded or "")
        print(f"nanlab: {told}", file=sys.stderr)
    trace.is_read = False


def in_notebook() -> bool:
    """Whether IPython runs the program, and shows what it displays."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def fail_test(trace: Trace, frame: FrameType | None) -> None:
    """Let the test of pytest that is running fail, unless it looks at the trace."""
    if "pytest" not in sys.modules:
        return
    while frame is not None:
        for name in ("pyfuncitem", "self"):
            item = frame.f_locals.get(name)
            manager = getattr(getattr(item, "config", None), "pluginmanager", None)
            if item is not None and manager is not None and hasattr(item, "nodeid"):
                plugin = manager.get_plugin(_StoppedWatches.NAME)
                if plugin is None:
                    plugin = _StoppedWatches()
                    manager.register(plugin, _StoppedWatches.NAME)
                plugin.stopped.append((item.nodeid, trace))
                return
        frame = frame.f_back


class _StoppedWatches:
    """A plugin of pytest, registered when the first watch stops in a test."""

    NAME = "nanlab-stopped-watches"

    def __init__(self) -> None:
        import pytest

        self.stopped: list[tuple[str, Trace]] = []
        # marks the function
        pytest.hookimpl(hookwrapper=True)(type(self).pytest_runtest_makereport)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Turn a passed test, in which a watch stopped that nobody looked at, into a failed one."""
        outcome = yield
        report = outcome.get_result()
        if report.when != "call":
            return
        unread = [
            trace for node, trace in self.stopped if node == item.nodeid and not trace.is_read
        ]
        self.stopped.clear()
        if unread and report.passed:
            culprit = unread[0].culprit
            report.outcome = "failed"
            report.longrepr = (
                "nanlab stopped the program:"
                f" {culprit.brief if culprit is not None else unread[0].guarded}\nA test that"
                ' expects this looks at the trace, or watches with on_fault="record".'
            )
