"""What nanlab answers for every program of the corpora, as JSON, and what changed between two
commits.

    python tests/answers.py                       # the working tree against its last commit
    python tests/answers.py HEAD~3 HEAD           # two commits
    python tests/answers.py HEAD --write FILE     # the answers of one commit, or of `.`, the
    working tree python tests/answers.py old.json new.json     # two files

The programs are those of this working tree, with their repaired twins; ``--only f001 tower``
chooses some by parts of their names, ``--every 5`` each fifth. The answers of a commit are kept in
build/answers. Exit status 1: some changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / "tests" / "corpus" / "cases", ROOT / "benchmarks" / "unseen")
KEPT = ROOT / "build" / "answers"
LIMIT = 120.0  # seconds for one program
Answers = dict[str, dict[str, Any]]


def answer_of(trace: Any) -> dict[str, Any]:
    """All that nanlab says of a run: the culprit, the causes of all findings, the fixes as they are
    shown."""
    findings = trace.findings
    found = trace.culprit or next((f for f in findings if f.severity == "error"), None)
    said: dict[str, Any] = {
        "findings": sorted(f"{f.cause} {f.severity} {f.op} {f.line} {f.step}" for f in findings)
    }
    said["notes"] = list(trace.notes)
    if found is not None:
        said |= {
            part: getattr(found, part)
            for part in ("cause", "line", "op", "phase", "step", "severity", "title")
        }
        said["file"] = Path(found.file).name
        said["fixes"] = [
            {"title": f.title, "code": f.code, "verified": bool(f.verified)} for f in found.fixes
        ]
        said["verified"] = any(f.verified for f in found.fixes)
    return said


def run(path: Path, fixed: bool) -> dict[str, Any]:
    """Watch one program; where data or initialisation are at fault its building too."""
    import harness

    import nanlab

    module = harness.load(path)
    meta = module.META
    whole = meta.get("phase") in ("init", "data")
    model, step = (None, None) if whole else module.build(fixed)
    with nanlab.watch(model, on_fault="record") as trace:
        if whole:
            model, step = module.build(fixed)
        for i in range(meta["n_steps"]):
            step(i)
    return answer_of(trace)


def _child(connection: Any, path: Path, fixed: bool) -> None:
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a program prints
    try:
        answer = run(path, fixed)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    connection.send(answer)


def ask(path: Path, fixed: bool) -> dict[str, Any]:
    """The answer for one program, in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(there, path, fixed))
    process.start()
    there.close()
    answer: dict[str, Any] = {"error": "no answer"}
    if here.poll(LIMIT):
        try:
            answer = here.recv()
        except EOFError:
            answer = {"error": "died"}
    if process.is_alive():
        process.terminate()
    process.join()
    return answer


def programs(only: list[str], every: int) -> list[Path]:
    found = sorted(path for folder in FOLDERS for path in folder.glob("[fth][0-9][0-9][0-9]_*.py"))
    return [p for p in found if not only or any(part in p.name for part in only)][::every]


def answers(paths: list[Path], jobs: int) -> Answers:
    """Name of each program, "name (twin)" for its repaired form -> what nanlab of the import path
    says."""
    sys.path.insert(0, str(ROOT / "tests" / "corpus"))
    import numba  # noqa: F401  imported once, before the forks
    import torch

    import nanlab

    with nanlab.watch(on_fault="record") as trace:
        torch.randn(3, requires_grad=True).sum().backward()
    _ = trace.findings  # compiles the kernels, once
    asked = [
        (path, fixed)
        for path in paths
        for fixed in ((False, True) if path.name[0] != "h" else (False,))
    ]
    found: Answers = {}
    if jobs > 1:  # threads beside forks may hang: each job is a process over its own share
        context = multiprocessing.get_context("fork")
        with tempfile.TemporaryDirectory() as folder:
            shares = [Path(folder) / f"{i}.json" for i in range(jobs)]
            children = [
                context.Process(target=_share, args=(asked[i::jobs], shares[i]))
                for i in range(jobs)
            ]
            for child in children:
                child.start()
            for child, share in zip(children, shares, strict=True):
                child.join()
                found |= json.loads(share.read_text())
    else:
        found = {_name(*one): ask(*one) for one in asked}
    return dict(sorted(found.items()))


def _share(asked: list[tuple[Path, bool]], file: Path) -> None:
    file.write_text(json.dumps({_name(*one): ask(*one) for one in asked}))


def _name(path: Path, fixed: bool) -> str:
    return f"{path.parent.name}/{path.stem}" + " (twin)" * fixed


def of(revision: str, arguments: argparse.Namespace) -> Answers:
    """The answers in a file, of a commit, or (".") of the working tree."""
    if revision.endswith(".json"):
        return json.loads(Path(revision).read_text())
    paths = [str(p) for p in programs(arguments.only, arguments.every)]
    if revision == ".":
        return _elsewhere(ROOT, paths, arguments.jobs)
    commit = _git("rev-parse", revision)
    digest = hashlib.sha256("".join(p + Path(p).read_text() for p in paths).encode()).hexdigest()[
        :12
    ]
    kept = KEPT / f"{commit[:12]}-{digest}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            _git("worktree", "add", "--detach", folder, commit)
            try:
                found = _elsewhere(Path(folder), paths, arguments.jobs)
            finally:
                _git("worktree", "remove", "--force", folder)
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, indent=1))
    return json.loads(kept.read_text())


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def _elsewhere(tree: Path, paths: list[str], jobs: int) -> Answers:
    """Ask the nanlab of another folder, in a Python of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--jobs",
            str(jobs),
            "--programs",
            "-",
            "--write",
            file.name,
        ]
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        subprocess.run(
            command, check=True, env=environment, cwd=tree, input="\n".join(paths), text=True
        )
        return json.loads(Path(file.name).read_text())


def changes(old: Answers, new: Answers) -> list[str]:
    """A block of lines for each program whose answer changed."""
    found = []
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        parts = [p for p in sorted(before.keys() | after.keys()) if before.get(p) != after.get(p)]
        if parts:
            found.append(name + "".join(f"\n    {p}: {_part(before, after, p)}" for p in parts))
    return found


def _part(before: dict[str, Any], after: dict[str, Any], part: str) -> str:
    was, now = before.get(part), after.get(part)
    if isinstance(was, list) and isinstance(now, list):
        gone, come = [x for x in was if x not in now], [x for x in now if x not in was]
        return (
            "".join(f"\n      - {_one(x)}" for x in gone)
            + "".join(f"\n      + {_one(x)}" for x in come)
            or "order"
        )
    return f"{was!r} -> {now!r}"


def _one(item: Any) -> str:
    return (
        f"{'' if item['verified'] else 'not '}verified: {item['code']}"
        if isinstance(item, dict)
        else str(item)
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "revisions", nargs="*", help="commits, files, or . for the working tree; default: HEAD ."
    )
    parser.add_argument("--only", nargs="+", default=[], help="parts of program names")
    parser.add_argument("--every", type=int, default=1, help="take each Nth program")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="keep the answers of one revision in this file")
    # "-": paths on stdin, asked of the nanlab on the path
    parser.add_argument("--programs", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.programs:
        found = answers(
            [Path(line) for line in sys.stdin.read().split("\n") if line], arguments.jobs
        )
    elif arguments.write:
        found = of(*(arguments.revisions or ["."]), arguments)
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1))
        return 0
    before, after = (arguments.revisions or ["HEAD", "."])[:2]
    old, new = of(before, arguments), of(after, arguments)
    changed = changes(old, new)
    print("\n".join(changed))
    print(
        f"{len(changed)} of {len(old.keys() & new.keys())} answers changed between {before} and"
        f" {after}"
    )
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
