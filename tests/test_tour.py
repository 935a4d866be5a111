"""The walk through the code leads where it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import nanlab

ROOT = Path(__file__).parent.parent
TOUR = (ROOT / "docs" / "tour.md").read_text()
STOPS = re.findall(r"`([A-Za-z_.]+)`\s+\(`(nanlab/[a-z_0-9/]+\.py)`", TOUR)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(nanlab/[^`]*)`", TOUR))))
def test_each_file_of_the_walk_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("name", "path"), STOPS)
def test_what_the_walk_names_is_defined_in_the_file_that_it_names(name: str, path: str) -> None:
    text = (ROOT / path).read_text()
    assert all(
        re.search(rf"\b(def|class) {part}\b|^{part}\b", text, re.MULTILINE)
        for part in name.split(".")
    )


def test_the_walk_is_short() -> None:
    assert len(TOUR.splitlines()) <= 120


def test_the_example_of_the_walk_is_what_it_says() -> None:
    example = re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL)[0]
    names: dict[str, object] = {"torch": torch, "nanlab": nanlab}
    exec(compile(example, "tour", "exec"), names)
    trace = names["trace"]
    assert isinstance(trace, nanlab.Trace)
    assert (
        str(trace.culprit)
        == "the derivative of sqrt at 1 zero among 2 is infinite  (tour:3, step 0)"
    )
    assert trace.ops.op.to_dict() | {0: "sqrt", 9: "div"} == trace.ops.op.to_dict()
    assert trace.ops.nan[9] == 1
