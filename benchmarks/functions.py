"""What runs to name the culprit of one square root at zero: functions and files of nanlab, as a
newcomer would read them.

    python benchmarks/functions.py [--list]

The program has four lines; counted is what runs from `trace.findings` to `trace.culprit` and its
fixes, not the watch.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import nanlab

PACKAGE = Path(nanlab.__file__).parent


def diagnosed() -> Counter[tuple[str, str]]:
    """(file, function) -> calls."""
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        y = torch.sqrt(x)
        y.sum().backward()
    found: Counter[tuple[str, str]] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents and not frame.f_code.co_name.startswith("<"):
            found[path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    culprit = trace.culprit
    sys.setprofile(None)
    assert culprit is not None
    assert culprit.cause == "sqrt-at-zero"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name them, file by file")
    arguments = parser.parse_args()
    found = diagnosed()
    files = Counter(file for file, _ in found)
    for file, count in sorted(files.items()) if arguments.list else ():
        print(f"{file}: {count}  ", *sorted(name for own, name in found if own == file))
    print(f"{len(found)} functions in {len(files)} files")


if __name__ == "__main__":
    main()
