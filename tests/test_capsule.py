"""A saved trace is the trace, in a process without the model's code; a file that is not what was
written says so."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import nanlab
from nanlab.__main__ import main
from nanlab.guards.outcome import write_files
from nanlab.program.capsule import save as write

TABLES = ("ops", "backward", "parameters", "steps", "skips", "edges", "shadow")


def training(model: nn.Module, fails: bool) -> Callable[[int], None]:
    update = torch.optim.AdamW(model.parameters())

    def step(number: int) -> None:
        update.zero_grad()
        y = model(torch.randn(16, 8)).squeeze()
        zero = 0.0 if fails and number == 2 else 1.0
        root = torch.sqrt((y * zero).abs())
        loss = root.mean() + y.mean()
        loss.backward()
        update.step()

    return step


def watched(fails: bool = True) -> nanlab.Trace:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1)
    )
    step = training(model, fails)
    with nanlab.watch(model) as trace:
        for number in range(3):
            step(number)
    return trace


@pytest.fixture(scope="module")
def trace() -> nanlab.Trace:
    found = watched()
    assert found.culprit is not None
    return found


@pytest.fixture(scope="module")
def capsule(trace: nanlab.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace.save(tmp_path_factory.mktemp("capsule") / "a.nanlab")


def told(trace: nanlab.Trace, fixes: bool = True) -> list[Any]:
    """What a trace says, as plain data."""
    findings = [
        [
            f.cause,
            f.severity,
            f.title,
            f.explanation,
            f.phase,
            f.op,
            f.module,
            f.step,
            f.file,
            f.line,
            f.source,
            f.position,
        ]
        + ([[x.title, x.code, x.verdict, x.why] for x in f.fixes] if fixes else [])
        for f in trace.findings
    ]
    tables = {}
    for name in TABLES:
        frame = pd.DataFrame(getattr(trace, name))
        tables[name] = hashlib.sha256(frame.to_csv().encode()).hexdigest()
    return [findings, tables, list(trace.notes), trace.at]


def test_tables_are_those_of_the_trace(trace: nanlab.Trace, capsule: Path) -> None:
    again = nanlab.load(capsule)
    for name in TABLES:
        pd.testing.assert_frame_equal(
            pd.DataFrame(getattr(again, name)), pd.DataFrame(getattr(trace, name))
        )
    for position in trace.ops.position[::7]:
        pd.testing.assert_series_equal(again.histogram(position), trace.histogram(position))


OTHER_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[2])
import nanlab, torch
from test_capsule import told
torch.set_num_threads(2)  # the recorded steps had one thread
trace = nanlab.load(sys.argv[1], trusted=True)
fix = trace.culprit.fixes[0]
with_it = trace.replay(fix)
position = int(trace.ops.position.iloc[-1])
print(json.dumps([
    told(trace), trace.replay().identical, with_it.loss, {n: g.tolist() for n, g in with_it.gradients.items()},
    trace.tensor(position).tolist(), trace.source(trace.culprit.file, trace.culprit.line, 0), repr(trace.report()),
]))
"""


def test_another_process_says_computes_and_mends_the_same(
    trace: nanlab.Trace, capsule: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(capsule), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    culprit = trace.culprit
    assert culprit is not None and culprit.fixes[0].verdict == "verified"
    mended = trace.replay(culprit.fixes[0])
    position = int(trace.ops.position.iloc[-1])
    here = [
        told(trace),
        True,
        mended.loss,
        {n: g.tolist() for n, g in mended.gradients.items()},
        trace.tensor(position).tolist(),
        trace.source(culprit.file, culprit.line, 0),
        repr(trace.report()),
    ]
    assert trace.replay().identical
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(json.dumps(here))


def test_source_of_a_file_is_run_only_where_it_is_trusted(
    capsule: Path, trace: nanlab.Trace
) -> None:
    again = nanlab.load(capsule)
    assert again.replay().identical
    with pytest.raises(nanlab.NotReplayable, match="trusted"):
        again.replay(trace.culprit.fixes[0])  # type: ignore[union-attr]


def test_findings_fixes_and_cure_are_those_of_the_run_that_was_saved(
    capsule: Path, trace: nanlab.Trace, tmp_path: Path
) -> None:
    again = nanlab.load(capsule)
    assert [repr(f) for f in again.findings] == [repr(f) for f in trace.findings]
    for found, saved in zip(again.findings, trace.findings, strict=True):
        assert found.fixes == saved.fixes
        assert (found.path, found.samples, found.library) == (
            saved.path,
            saved.samples,
            saved.library,
        )
        pd.testing.assert_frame_equal(found.evidence, saved.evidence)
    assert trace.cure is not None and again.cure is not None
    assert again.cure.verdict == trace.cure.verdict == "verified"
    assert (again.cure.fixes, again.cure.diff()) == (trace.cure.fixes, trace.cure.diff())
    further = nanlab.load(again.save(tmp_path / "handed-on.nanlab"))
    assert further.culprit is not None and further.culprit.fixes == trace.culprit.fixes  # type: ignore[union-attr]


def test_two_faults_keep_their_cure_in_a_file(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.tensor([0.0, 4.0]))
    scale = nn.Parameter(torch.tensor([0.0, 2.0]))
    with nanlab.watch(on_fault="record") as trace:
        root = torch.sqrt(weight)
        ratio = torch.log(scale)
        (root.sum() + ratio.sum()).backward()
    again = nanlab.load(trace.save(tmp_path / "two.nanlab"))
    assert [f.line for f in again.findings] == [f.line for f in trace.findings]
    assert trace.cure is not None and again.cure is not None
    assert again.cure.edits == trace.cure.edits
    told = str(trace.report())
    assert "cure (verified) of all faults of the step" in told
    assert all(edit.text in told for edit in trace.cure.edits)
    assert trace.culprit is not None and trace.culprit.fixes[0].verdict == "fails"
    assert "no single fix helps" in trace.culprit.brief


@pytest.mark.parametrize(
    "answers",
    [
        7,
        {"findings": 1, "hidden": [], "cure": None},
        {"findings": [{"cause": "x"}], "hidden": [], "cure": None},
        {"findings": [], "hidden": [], "cure": {"verdict": "verified"}},
    ],
)
def test_findings_of_another_form_are_refused(answers: object, tmp_path: Path) -> None:
    trace = watched(fails=False)
    trace.recording.answers = answers  # type: ignore[assignment]
    path = write(trace, tmp_path / "bad.nanlab")
    with pytest.raises(nanlab.CapsuleError, match="damaged"):
        nanlab.load(path)


def test_a_healthy_run_has_no_culprit_after_loading_either(tmp_path: Path) -> None:
    again = nanlab.load(watched(fails=False).save(tmp_path / "b.nanlab"))
    assert again.culprit is None
    assert again.replay(step=1).identical


def test_a_leaf_beyond_the_budget_is_named(tmp_path: Path) -> None:
    weight = torch.randn(8, 8)
    model = nn.Linear(8, 8)
    model.register_buffer("table", weight)
    with nanlab.watch(model) as trace:
        (model(torch.randn(4, 8)) @ model.table).sum().backward()
    with pytest.warns(RuntimeWarning, match="did not fit into the budget"):
        path = trace.save(tmp_path / "c.nanlab", budget=0)
    again = nanlab.load(path)
    assert len(again.ops) == len(trace.ops)
    with pytest.raises(nanlab.NotReplayable, match="is not in the file"):
        again.replay()


@pytest.mark.parametrize("budget", [-1, 1.5, True, "64M"])
def test_a_wrong_budget_is_refused(trace: nanlab.Trace, tmp_path: Path, budget: Any) -> None:
    with pytest.raises(nanlab.NanlabError, match="budget"):
        trace.save(tmp_path / "d.nanlab", budget=budget)


def check_mutated(path: Path, good: bytes, expected: list[Any], times: int, seed: int) -> None:
    draw, refused = random.Random(seed), list[str]()
    for _ in range(times):
        mutated = bytearray(good)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.choice(
                (
                    draw.randrange(len(mutated)),
                    len(mutated) - 1 - draw.randrange(400),
                    draw.randrange(80),
                )
            )
            mutated[at % len(mutated)] = draw.randrange(256)
        kind = draw.randrange(8)
        if kind == 0:
            del mutated[draw.randrange(len(mutated)) :]
        elif kind == 1:
            at = draw.randrange(len(mutated))
            del mutated[at : at + draw.randrange(1, 200)]
        path.write_bytes(mutated)
        try:
            again = nanlab.load(path)
        except nanlab.NanlabError as error:
            refused.append(str(error))
        else:
            assert told(again, fixes=False) == expected
    assert refused and all(refused)


def test_300_mutated_files_are_refused_or_equal(capsule: Path, tmp_path: Path) -> None:
    check_mutated(
        tmp_path / "m", capsule.read_bytes(), told(nanlab.load(capsule), fixes=False), 300, seed=0
    )


@pytest.mark.slow
def test_10000_mutated_files_are_refused_or_equal(capsule: Path, tmp_path: Path) -> None:
    check_mutated(
        tmp_path / "m",
        capsule.read_bytes(),
        told(nanlab.load(capsule), fixes=False),
        10_000,
        seed=1,
    )


def rewritten(capsule: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The capsule with another head, and a digest that fits."""
    with zipfile.ZipFile(capsule) as file:
        members = {name: file.read(name) for name in file.namelist()}
    head = json.loads(members["trace.json"])
    change(head)
    members["trace.json"] = json.dumps(head).encode()
    whole = hashlib.sha256()
    parts = ("numbers", "tensors", "exponents")
    for name in ("trace.json", *(f"{part}.safetensors" for part in parts)):
        whole.update(hashlib.sha256(members[name]).digest())
    members["digest"] = whole.hexdigest().encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def first_ref(head: dict[str, Any]) -> list[Any]:
    leaves = {number for number, _ in head["program"]["segments"][0]["leaves"]}
    found: list[Any] = next(ref for ref in head["refs"] if ref[0] in leaves and ref[5] is not None)
    return found


def a_view_beyond_its_storage(head: dict[str, Any]) -> None:
    first_ref(head)[1] = 1 << 30


def a_negative_offset(head: dict[str, Any]) -> None:
    first_ref(head)[1] = -4


def an_operator_of_files(head: dict[str, Any]) -> None:
    head["program"]["segments"][-1]["calls"][0][1] = ["op", "aten::from_file"]


def an_operator_of_others(head: dict[str, Any]) -> None:
    head["program"]["segments"][-1]["calls"][0][0] = ["op", "profiler::_record_function_enter_new"]


def an_operator_in_the_place_of_arguments(head: dict[str, Any]) -> None:
    head["program"]["segments"][-1]["calls"][0][0] = ["op", "aten::from_file"]


def a_class_of_another_kind(head: dict[str, Any]) -> None:
    head["guarded"] = ["subprocess.Popen", "true"]


def a_device_of_no_machine(head: dict[str, Any]) -> None:
    first = head["program"]["segments"][0]["leaves"][0]
    first[1] = first[1].partition(":")[0] + ":/dev/null"


def another_format(head: dict[str, Any]) -> None:
    head["format"] = 99


def rows_that_point_outside(head: dict[str, Any]) -> None:
    head["recording"]["ops"] = ["Names"]


def code_in_the_place_of_an_operator(head: dict[str, Any]) -> None:
    head["evidence"][0][1][2] = "aten.exp.default; raise SystemExit"


def code_in_the_name_of_an_argument(head: dict[str, Any]) -> None:
    head["evidence"][0][1][4] = ["dict", ["a=exit(), b", 1]]


def deep_nesting(head: dict[str, Any]) -> None:
    value: Any = 0
    for _ in range(900):
        value = ["list", value]
    head["recording"]["notes"] = value


def test_step_whose_beginning_no_step_before_makes_says_so(capsule: Path, tmp_path: Path) -> None:
    def change(head: dict[str, Any]) -> None:
        first = head["program"]["segments"][0]
        assert first["leaves"] and head["program"]["segments"][-1]["unmade"]
        number, key = first["leaves"].pop(0)
        first["unmade"].append([number, int(key != ""), "cpu"])
        first["calls"], first["engine"], first["looks"], first["optimizers"] = [], [], [], []

    trace = nanlab.load(rewritten(capsule, tmp_path / "h", change))
    with pytest.raises(nanlab.NanlabError):
        trace.replay()


HOSTILE = [
    a_view_beyond_its_storage,
    a_negative_offset,
    an_operator_of_files,
    an_operator_of_others,
    an_operator_in_the_place_of_arguments,
    a_class_of_another_kind,
    a_device_of_no_machine,
    another_format,
    rows_that_point_outside,
    code_in_the_place_of_an_operator,
    code_in_the_name_of_an_argument,
    deep_nesting,
]


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_a_hostile_file_is_refused(
    capsule: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    with pytest.raises(nanlab.CapsuleError):
        nanlab.load(rewritten(capsule, tmp_path / "h", change))


def test_the_rewriting_of_these_tests_is_no_damage_by_itself(capsule: Path, tmp_path: Path) -> None:
    assert nanlab.load(rewritten(capsule, tmp_path / "h", lambda head: None)).culprit is not None


def test_a_file_that_claims_too_much_is_not_opened(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("trace.json", "w") as member:
            for _ in range(400):
                member.write(bytes(1 << 20))
        for name in ("numbers.safetensors", "tensors.safetensors", "digest"):
            file.writestr(name, b"")
    with pytest.raises(nanlab.CapsuleError, match="claims"):
        nanlab.load(tmp_path / "bomb")


@pytest.mark.parametrize("content", [b"", b"nanlab", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_capsule_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(nanlab.CapsuleError):
        nanlab.load(tmp_path / "x")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nanlab.CapsuleError, match="cannot be read"):
        nanlab.load(tmp_path / "nothing")


def test_the_command_line_shows_what_a_guard_saved(
    trace: nanlab.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(trace, tmp_path)
    assert main(["show", str(tmp_path / "nanlab.nanlab")]) == 0
    assert trace.culprit is not None and trace.culprit.title in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["show", str(tmp_path / "nanlab.nanlab"), "--trusted"]) == 0
    assert "verified" in capsys.readouterr().out
    assert (
        main(["show", str(tmp_path / "nanlab.nanlab"), "--html", str(tmp_path / "again.html")]) == 0
    )
    assert (tmp_path / "again.html").stat().st_size > 10_000


def test_a_page_that_cannot_be_written_is_one_line(
    capsule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(capsule), "--html", str(tmp_path / "no" / "page.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nanlab: the report could not be written to")


@pytest.mark.parametrize("path", [None, 3, True])
def test_what_is_no_path_is_refused(trace: nanlab.Trace, path: Any) -> None:
    for take in (nanlab.load, trace.save, trace.report().to_html):
        with pytest.raises(nanlab.NanlabError, match="expected a path"):
            take(path)


def test_a_capsule_holds_no_pickle(capsule: Path) -> None:
    with zipfile.ZipFile(capsule) as file:
        assert sorted(file.namelist()) == [
            "digest",
            "exponents.safetensors",
            "numbers.safetensors",
            "tensors.safetensors",
            "trace.json",
        ]
        json.load(io.BytesIO(file.read("trace.json")))


# A file that was written is read: what the reader refuses is not written.


def checkpoints() -> None:
    block = nn.Linear(4, 4)
    update = torch.optim.SGD(block.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=True)
        for _ in range(3):
            x = checkpoint(block, x, use_reentrant=True)
        x.sum().backward()
        update.step()


def checkpoints_in_checkpoints() -> None:
    block = nn.Linear(4, 4)

    def twice(x: torch.Tensor) -> Any:
        return checkpoint(block, checkpoint(block, x, use_reentrant=True), use_reentrant=True)

    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=True)
        for _ in range(2):
            x = checkpoint(twice, x, use_reentrant=True)
        x.sum().backward()


def a_hook_that_goes_back() -> None:
    model = nn.Linear(4, 4)

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaf = gradient.detach().requires_grad_()
            leaf.square().sum().backward()
        return gradient + leaf.grad

    for _ in range(2):
        y = model(torch.randn(3, 4))
        y.register_hook(hook)
        y.sum().backward()


def inner_updates() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    for _ in range(2):
        model.zero_grad()
        own, x = dict(model.named_parameters()), torch.randn(5, 3)
        inner = torch.func.functional_call(model, own, (x,)).abs().pow(1.5).mean()
        moves = torch.autograd.grad(inner, [*own.values()], create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(own.items(), moves, strict=True)}
        torch.func.functional_call(model, fast, (x,)).square().mean().backward()


def derivatives_forward() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def value(own: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(model, own, (x,)).squeeze(-1)

    second = torch.func.jacfwd(torch.func.jacrev(value, argnums=1), argnums=1)
    for _ in range(2):
        model.zero_grad()
        own = dict(model.named_parameters())
        torch.func.vmap(second, (None, 0))(own, torch.rand(6, 2)).square().mean().backward()


@pytest.mark.parametrize(
    "program",
    [
        checkpoints,
        checkpoints_in_checkpoints,
        a_hook_that_goes_back,
        inner_updates,
        derivatives_forward,
    ],
)
def test_backward_passes_inside_of_others_replay_from_a_file(
    tmp_path: Path, program: Callable[[], None]
) -> None:
    torch.manual_seed(0)
    with nanlab.watch(on_fault="record") as trace:
        program()
    again = nanlab.load(trace.save(tmp_path / "n.nanlab"))
    assert trace.replay().identical
    assert again.replay().identical


def memory_of_another_size() -> str:
    kept, model = torch.empty(0), nn.Linear(4, 4)
    for rows in (2, 3):
        torch.ones(rows, 4, out=kept.resize_(0))
        model(kept.clone()).sum().backward()
    return "size of a storage"


def a_sparse_gradient() -> str:
    table = nn.Embedding(9, 4, sparse=True)
    for _ in range(2):
        table.zero_grad()
        table(torch.tensor([1, 2])).sum().backward()
    return "replay the step in the process that recorded it"


def test_steps_that_a_file_cannot_hold_are_told_of_when_it_is_written(tmp_path: Path) -> None:
    with nanlab.watch(on_fault="record") as trace:
        told = a_sparse_gradient()
    with pytest.warns(RuntimeWarning, match=f"cannot be run again from it.*{told}"):
        path = trace.save(tmp_path / "s.nanlab")
    again = nanlab.load(path)
    assert told in again.notes[-1] and "Held" not in again.notes[-1]
    assert trace.replay().identical
    with pytest.raises(nanlab.NotReplayable, match=told):
        again.replay()


def test_memory_that_was_resized_leaves_a_file_that_opens(tmp_path: Path) -> None:
    with nanlab.watch(on_fault="record") as trace:
        told = memory_of_another_size()
    with pytest.warns(RuntimeWarning, match="has another size now"):
        path = trace.save(tmp_path / "r.nanlab")
    again = nanlab.load(path)
    assert len(again.ops) == len(trace.ops)
    with pytest.raises(nanlab.NotReplayable, match=told):
        again.replay()


def a_scripted_quotient(x: torch.Tensor) -> torch.Tensor:
    return torch.jit.trace(lambda v: v / v, torch.ones(3, 4))(x)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
@pytest.mark.parametrize(
    "make", [lambda x: x.prod(1).log(), lambda x: x.prod(1).sqrt(), a_scripted_quotient]
)
def test_gradients_of_nodes_whose_calls_are_not_seen_leave_a_file_that_opens(
    tmp_path: Path, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 0
    with nanlab.watch(on_fault="record") as trace:
        make(x.requires_grad_()).sum().backward()
    again = nanlab.load(trace.save(tmp_path / "n.nanlab"))
    assert str(again.culprit) == str(trace.culprit)
    assert set(again.recording.evidence) == set(trace.recording.evidence)


def test_findings_that_say_the_same_are_equal_in_another_run_and_in_a_capsule(
    tmp_path: Path,
) -> None:
    def found(*values: float) -> nanlab.Trace:
        w = nn.Parameter(torch.tensor(values))
        with nanlab.watch(on_fault="record") as trace:
            torch.sqrt(w).sum().backward()
        return trace

    trace, again, other = found(0.0, 1.0), found(0.0, 1.0), found(0.0, 0.0)
    loaded = nanlab.load(trace.save(tmp_path / "run.nanlab"))
    assert trace.culprit is not None and trace.culprit == again.culprit == loaded.culprit
    assert trace.findings == loaded.findings and loaded.culprit in trace.findings
    assert trace.culprit != other.culprit and other.culprit not in trace.findings
