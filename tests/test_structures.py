"""The generator of programs in benchmarks/structures.py, and what is verified of some of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import structures


def test_the_twin_has_the_structure_of_the_program() -> None:
    for seed in range(60):
        faulty, twin = structures.program(seed)
        assert compile(faulty, "faulty.py", "exec") and compile(twin, "twin.py", "exec")
        assert faulty.count("def ") == twin.count("def ") - 1  # of a series
        assert faulty != twin


@pytest.mark.parametrize("seed", [3, 8, 14])
def test_what_is_verified_is_right_when_written_in(seed: int, tmp_path: Path) -> None:
    found = structures.judged(seed, tmp_path)
    assert found
    assert {verdict for _, (verdict, _) in found} == {"right"}
