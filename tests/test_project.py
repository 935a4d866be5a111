"""The project's files agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)\s*(>=|==)\s*([0-9.]+)$")
CONDA_NAMES = {"pytorch": "torch"}


def declared() -> dict[str, tuple[str, str]]:
    """Name -> (sign, version) of what the set-up commands install; the rivals that a benchmark runs
    are no part of that."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return parsed(
        [
            *project["dependencies"],
            *(line for name in ("lab", "test", "docs", "dev") for line in extras[name]),
        ]
    )


def parsed(lines: list[str]) -> dict[str, tuple[str, str]]:
    found = {}
    for line in lines:
        match = REQUIREMENT.match(line)
        assert match, f"expected name>=version, got {line!r}"
        found[match[1]] = (match[2], match[3])
    return found


def test_every_dependency_has_a_lower_bound() -> None:
    assert {sign for sign, _ in declared().values()} == {">="}


def test_conda_environment_names_the_same_dependencies() -> None:
    lines = [
        line.strip("- ").strip() for line in (ROOT / "environment.yml").read_text().splitlines()
    ]
    conda = parsed([line for line in lines if REQUIREMENT.match(line)])
    conda.pop("python")
    assert {CONDA_NAMES.get(name, name): bound for name, bound in conda.items()} == declared()


def test_constraints_pin_every_dependency_at_or_above_its_bound() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    pins = parsed(lines)
    assert {sign for sign, _ in pins.values()} == {"=="}
    for name, (_, bound) in declared().items():
        assert name in pins, f"constraints.txt does not pin {name}"
        pinned = pins[name][1]
        assert [int(n) for n in pinned.split(".")] >= [int(n) for n in bound.split(".")], name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"])
def test_first_things_a_reader_looks_for_are_there(name: str) -> None:
    assert (ROOT / name).read_text().strip()


def test_every_make_command_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    mentioned = set(re.findall(r"`make ([a-z]+)", (ROOT / "README.md").read_text()))
    assert mentioned
    assert mentioned <= targets


def test_no_line_of_the_package_is_wider_than_a_hundred_columns() -> None:
    wide = [  # ruff lets those pass that end in a comment for a tool
        f"{path.name}:{number}"
        for path in (ROOT / "nanlab").rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert wide == []


MOST_FUNCTIONS, MOST_FILES = 200, 35


def test_a_root_at_zero_is_diagnosed_by_few_functions_in_few_files() -> None:
    counted = [sys.executable, ROOT / "benchmarks" / "functions.py"]  # nothing is cached there yet
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(counted, env=environment, capture_output=True, text=True, check=True)
    functions, files = map(int, re.findall(r"\d+", told.stdout))
    assert functions <= MOST_FUNCTIONS
    assert files <= MOST_FILES
