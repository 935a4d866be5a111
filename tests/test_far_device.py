"""A device that is not the CPU, of our own making: what nanlab says there is what it says on the
CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.utils.backend_registration
from conftest import asked_for

HERE = Path(__file__).parent
NAMES = ("healthy", "log", "power", "inverse", "repaired")
FAULTY = ("log", "power", "inverse")  # and not repaired


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What was said, by device and program, of those that this run asks for."""
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch takes no backend written in Python")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    few = dict.fromkeys(["healthy", *asked_for(request, "name", NAMES)])
    ran = subprocess.run(
        [sys.executable, str(HERE / "far.py"), *few],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("name", NAMES)
def test_device_and_cpu_name_the_same_culprit_with_elements_and_fixes(
    name: str, told: dict[str, Any]
) -> None:
    there, here = told["far"][name], told["cpu"][name]
    assert not there["notes"]
    for what in ("births", "kept", "place", "elements"):
        assert there.get(what) == here.get(what), what
    offered = [
        {(title, code) for title, code, _ in told.get("fixes", [])} for told in (there, here)
    ]
    # whether they are right is not told there, for what the step overwrites is not copied
    assert offered[0] >= offered[1]
    assert ("place" in there) == (name in FAULTY) == bool(offered[0])
    assert bool(there["kept"]) == (name != "healthy")


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("name", NAMES)
def test_results_on_a_device_are_the_same_bits_with_and_without_a_watch(
    name: str, told: dict[str, Any]
) -> None:
    assert told["far"][name]["same"]


def test_no_operation_of_a_healthy_run_waits_for_the_device(told: dict[str, Any]) -> None:
    healthy = told["far"]["healthy"]
    assert healthy["rows"] > 100
    # the four results that the program itself reads; a transfer for each step, and for what the
    # last optimizer step wrote
    assert healthy["waits"].get("number", 0) == 0
    assert healthy["waits"]["copy"] <= 4 + 3
