"""What every test starts from: one thread and fixed seeds, which make the CPU deterministic; what
takes longest comes first.

`torch.use_deterministic_algorithms` stays off: it fills uninitialised memory with NaN and picks
other kernels than users run.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanlab.rules import cure, remedies

BROWSER = Path(__file__).parent / "browser"
# what takes longest comes first, so that all processes end together
LONG = ("browser", "test_detail", "test_fixes_applied", "test_guard", "test_notebooks")
LONG += ("test_ranks", "test_integrations", "test_magics", "test_docs")
FEW, THIRD = 3, 3  # examples of a law of which a run on one's own machine takes every third
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # processes that tests start find nanlab compiled


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What is imported stays: the garbage collector, which took a sixth of the time to walk all of
    torch again and again, looks at what comes later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests in the browser, put the long files first, and leave examples out."""

    def place(item: pytest.Item) -> int:
        name = "browser" if item.path.is_relative_to(BROWSER) else item.path.stem
        return LONG.index(name) if name in LONG else len(LONG)

    for item in items:
        if item.path.is_relative_to(BROWSER):
            item.add_marker(pytest.mark.browser)
    items.sort(key=place)
    if os.environ.get("EXAMPLES") != "all" and not any("::" in arg for arg in config.args):
        leave_out(config, items)


def first_example() -> int:
    """Where a run in CI begins to count examples: commit by commit elsewhere, so that all have
    their turn; the same commit gives the same tests."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return int(subprocess.run(git, capture_output=True, text=True, check=True).stdout[:8], 16)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0  # not a clone


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a law held over many examples a run takes every n-th; where n is 0 CI takes all, and a run
    elsewhere none. Of all files together a run elsewhere takes a third as many, of all laws with
    more than a few."""
    in_ci = bool(os.environ.get("CI"))
    fewer = not in_ci and not any(arg.endswith(".py") for arg in config.args)
    first = first_example() if in_ci else 0
    count = Counter(item.nodeid.partition("[")[0] for item in items)
    seen: Counter[str] = Counter()
    left: dict[bool, list[pytest.Item]] = {False: [], True: []}
    for item in items:
        mark = item.get_closest_marker("examples")
        every = mark.kwargs["every"] if mark else 1
        law = item.nodeid.partition("[")[0]
        if fewer and count[law] > FEW:
            every *= THIRD
        start = first % min(every or 1, count[law])
        left[seen[law] % every != start if every else not in_ci].append(item)
        seen[law] += 1
    if left[True]:
        config.hook.pytest_deselected(items=left[True])
        items[:] = left[False]


def asked_for(request: pytest.FixtureRequest, parameter: str, among: Iterable[str]) -> list[str]:
    """Those values of a parameter that a test of this run asks a fixture for."""
    tests = [
        i for i in request.session.items if request.fixturename in getattr(i, "fixturenames", [])
    ]
    wanted = {i.callspec.params.get(parameter) for i in tests if hasattr(i, "callspec")}
    return [value for value in among if value in wanted]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` all tests in the browser run in one process, which has the only
    JupyterLab."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "browser" if "browser/" in file else file

    return Scheduling(config, log)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def reproducible() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # libraries under test use numpy's global state
    torch.manual_seed(0)
    # torch.compile switches it off for the rest of the process
    torch.distributions.Distribution.set_default_validate_args(True)


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixes are offered and none is tried: the tests of fixes do that."""
    for module in (remedies, cure):
        monkeypatch.setattr(module, "WORK", 0)


@pytest.fixture(autouse=True)
def needs_cuda(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
