"""Programs in several processes under torchrun: which rank, step and line every one of them names,
and that all end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import asked_for

import nanlab

HERE = Path(__file__).resolve().parent / "ranked"
sys.path.insert(0, str(HERE))
from ranked_programs import (  # noqa: E402  # the processes import it by that name too
    PROGRAMS,
)

# In a plain run: one program for each way in which a fault travels. The others come with `make
# conformance`.
FEW = (
    "ddp ddp_gradients_are_views_of_buckets ddp_unused_parameters ddp_no_sync ddp_float16_hook"
    " fsdp1 fsdp2_bfloat16 fsdp2_fault_in_one_shard embeddings_gathered batch_sent_by_rank_0"
    " weights_broadcast_by_rank_0 only_rank_1_is_harmed"
    " unequal_parts_overflow one_backward_without_a_step"
).split()
REPORTED = ["ddp:stop:spoilt", "ddp:stop:healthy"]
FOUR = ["ddp_many_buckets:stop:spoilt", "fsdp2:stop:spoilt"]


@dataclass
class Ended:
    """A run of torchrun: its exit status, what it printed, and what each rank wrote."""

    status: int
    text: str
    said: list[dict[str, Any]]
    left_over: list[int]  # processes that it left behind

    def of(self, wish: str) -> list[dict[str, Any]]:
        """What each rank said of a program."""
        return [one for one in self.said if one["wish"] == wish]


def torchrun(
    out: Path, processes: int, script: str, *arguments: str, seconds: float = 300
) -> Ended:
    """Run a script of the folder ``ranked``, or with ``-m`` a module, in several processes, and
    wait until they have ended."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    program = [script] if script == "-m" else [str(HERE / script), str(out)]
    done = subprocess.run(
        [*command, *program, *arguments],
        env=environment(out), capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    left_over = list(_with_mark(str(out)))
    return Ended(done.returncode, done.stdout + done.stderr, said_in(out), left_over)


def environment(out: Path) -> dict[str, str]:
    """What the processes of a run find in their environment."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RANKED": out.name}
    return os.environ | own | {"PYTHONPATH": path}


def said_in(out: Path) -> list[dict[str, Any]]:
    """What the ranks wrote."""
    files = sorted(out.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _with_mark(mark: str) -> Iterator[int]:
    for process in psutil.process_iter():
        try:
            if any(mark in part for part in process.cmdline()):
                yield process.pid
        except psutil.Error:
            continue


def wishes(names: list[str], modes: tuple[str, ...] = ("stop", "record")) -> list[str]:
    spoilt = [f"{name}:{mode}:spoilt" for name in names for mode in modes]
    return [*spoilt, *(f"{name}:stop:healthy" for name in names)]


def check(run: Ended, wish: str, world: int) -> None:
    """Every rank says what is true of the program."""
    name, mode, state = wish.split(":")
    program, said = PROGRAMS[name], run.of(wish)
    assert [one["rank"] for one in said] == list(range(world)), run.text[-3000:]
    for one in said:
        assert (one["error"], one["notes"]) == ("", []), one
        if state == "healthy" or program.harmless:
            assert not one["errors"] and one["steps"] == program.steps, one
            continue
        home = one["rank"] if program.everywhere else program.rank
        cause = program.cause if one["rank"] == home else "from-another-rank"
        culprit = one["culprit"]
        assert (culprit["cause"], culprit["rank"], culprit["step"]) == (
            cause,
            home,
            program.step,
        ), one
        assert "# SPOILT" in culprit["source"], one
        homes = range(world) if program.everywhere else [program.rank]
        assert [each[:2] for each in one["told"]] == [[r, program.step] for r in homes], one
        assert one["steps"] == (program.step + 1 if mode == "stop" else program.steps), one


@pytest.fixture(scope="module")
def on_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """What the tests of this run ask for, in one run of torchrun."""
    few = dict.fromkeys([*REPORTED, *asked_for(request, "wish", wishes(FEW))])
    return torchrun(tmp_path_factory.mktemp("two"), 2, "worker.py", *few, "odd")


@pytest.mark.examples(every=2)  # those that stop; "odd" has ranks that record
@pytest.mark.parametrize("wish", wishes(FEW))
def test_every_rank_names_rank_step_and_line_and_ends_in_that_step(
    on_two: Ended, wish: str
) -> None:
    check(on_two, wish, 2)


def test_torchrun_ends_well_and_leaves_no_process_behind(on_two: Ended) -> None:
    assert on_two.status == 0 and not on_two.left_over, on_two.text[-3000:]


def test_the_report_of_each_rank_lists_the_culprits_of_all(on_two: Ended) -> None:
    first, second = on_two.of(REPORTED[0])
    assert first["told"] == second["told"] and [told[:2] for told in first["told"]] == [[1, 3]]
    assert first["reported"] and second["reported"]
    assert [one["reported"] for one in on_two.of(REPORTED[1])] == [False, False]


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return torchrun(tmp_path_factory.mktemp("four"), 4, "worker.py", *FOUR)


@pytest.mark.examples(every=0)
@pytest.mark.parametrize("wish", FOUR)
def test_four_ranks_name_the_same_origin_and_end_together(on_four: Ended, wish: str) -> None:
    check(on_four, wish, 4)


def test_where_one_rank_only_watches_it_does_not_leave_the_other_waiting(on_two: Ended) -> None:
    first, second = on_two.of("one_watches")
    assert first["finished"] and second["finished"]
    assert first["culprit"]["cause"] == "log-of-zero" and any(
        "did not stop" in note for note in first["notes"]
    )


def test_a_healthy_rank_that_watches_alone_is_not_held_up(on_two: Ended) -> None:
    first, second = on_two.of("one_watches_healthy")
    assert (
        first["finished"] and second["finished"] and first["culprit"] is None and not first["notes"]
    )


def test_a_process_group_may_begin_and_end_inside_of_a_watch(on_two: Ended) -> None:
    for one in on_two.of("group_inside"):
        assert one["finished"] and one["culprit"]["rank"] == 1 and one["culprit"]["step"] == 3


def test_ranks_that_record_and_ranks_that_stop_do_not_wait_for_each_other(on_two: Ended) -> None:
    first, second = on_two.of("one_records")
    assert first["finished"] and second["finished"]
    assert [one["culprit"]["rank"] for one in (first, second)] == [1, 1]


def test_a_rank_may_leave_its_watch_before_the_others(on_two: Ended) -> None:
    first, second = on_two.of("one_leaves_early")
    assert first["finished"] and second["finished"] and not first["errors"] and not second["errors"]


@pytest.mark.parametrize("kind", ["ddp", "sharded", "alone"])
def test_guarded_ranks_stop_before_the_same_step_and_replay_it_together(
    on_two: Ended, kind: str
) -> None:
    said = on_two.of(f"guarded_{kind}")
    assert [one["rank"] for one in said] == [0, 1], on_two.text[-3000:]
    for one in said:
        assert one["taken"] == 10 and one["sound"] and "bit for bit" in one["guarded"], one
        culprit = one["culprit"]
        assert (culprit["rank"], culprit["step"]) == (1, 10) and "# SPOILT" in culprit["source"]


def test_a_rank_under_guard_alone_goes_on_and_says_that_it_found_a_fault(on_two: Ended) -> None:
    first, second = on_two.of("one_guarded")
    assert [first["taken"], second["taken"]] == [12, 12] and second["guarded"] == "None"
    assert (
        "nanlab: rank 1: loss or gradients of step 10 are not finite; the run goes on"
        in on_two.text
    )


@pytest.mark.examples(every=0)
def test_the_command_line_under_torchrun_writes_a_capsule_for_each_rank(tmp_path: Path) -> None:
    out = tmp_path / "saved"
    options = ["-m", "nanlab", "run", "--guard", "--save", str(out), str(HERE / "training.py")]
    run = torchrun(tmp_path, 2, *options)
    assert run.status != 0 and "exitcode  : 3 " in run.text and not run.left_over, run.text
    for rank in range(2):
        names = [f"nanlab.rank{rank}.{end}" for end in ("html", "nanlab", "txt")]
        assert all((out / name).is_file() for name in names)
        assert (out / names[2]).read_text().count("\nerror: ") == 0  # the finding, told once
        told = [line for line in run.text.splitlines() if names[0] in line]
        assert len(told) == 1 and "rank 1" in told[0] and "step 10" in told[0], run.text
        culprit = nanlab.load(out / names[1]).culprit
        assert culprit is not None and (culprit.rank, culprit.step) == (1, 10)
        assert "# SPOILT" in culprit.source


@pytest.mark.examples(every=0)
def test_when_a_rank_dies_the_other_ends_with_the_error_of_its_collective(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, str(HERE / "dying.py"), str(tmp_path)]
    ranks = [
        subprocess.Popen(command, env=environment(tmp_path) | group | {"RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [1, -signal.SIGKILL]
    finally:
        for rank in ranks:
            rank.kill()
    (survivor,) = said_in(tmp_path)
    assert (
        survivor["rank"] == 0
        and survivor["error"]
        and survivor["culprit"] is None
        and not survivor["errors"]
    )


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("world", [2, 4])
def test_all_programs_are_told_right(world: int, tmp_path: Path) -> None:
    names = [name for name in PROGRAMS if world == 2 or name not in ("samples_exchanged",)]
    asked = [*wishes(names), *(f"{name}:record:healthy" for name in names)]
    run = torchrun(tmp_path, world, "worker.py", *asked, seconds=1800)
    assert run.status == 0 and not run.left_over, run.text[-3000:]
    wrong = []
    for wish in asked:
        try:
            check(run, wish, world)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join([f"{len(wrong)} of {len(asked)}", *wrong])
