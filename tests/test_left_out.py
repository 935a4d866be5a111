"""A batch without the samples that failed: what their data have in common, as a condition."""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis.verdict import Judge
from nanlab.findings.rule import Fix
from nanlab.rules import remedies
from nanlab.rules.left_out import without_samples
from nanlab.rules.remedies import _rank, judge_for
from nanlab.views.card import best_fix

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def train(x, y):
    opt.zero_grad()
    shares = x / x.sum(1, keepdim=True)
    loss = (net(shares)[:, 0] - y).square().mean() - shares.log().mean()
    loss.backward()
    opt.step()
    return loss
"""


def loaded(path: Path, text: str = PROGRAM) -> dict[str, Any]:
    path.write_text(text)
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(text, str(path), "exec"), names)
    return names


def batches(bad: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    made = [(torch.rand(6, 4), torch.rand(6)) for _ in range(3)]
    made[2][0][4] = bad
    return made


def watched(names: dict[str, Any], data: list[tuple[torch.Tensor, torch.Tensor]]) -> nanlab.Trace:
    with nanlab.watch(names["net"], on_fault="record") as trace:
        for x, y in data:
            names["train"](x, y)
    assert trace.culprit is not None
    return trace


def leaving(trace: nanlab.Trace) -> list[nanlab.Fix]:
    """What would be told if no other fix were right."""
    assert trace.culprit is not None
    judge = judge_for(trace, trace.culprit)
    assert isinstance(judge, Judge)
    return without_samples(trace, trace.culprit, judge.where, judge.values)


def test_samples_are_left_out_by_what_tells_them_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "shares.py"
    trace = watched(loaded(path), batches(0.0))
    assert trace.culprit is not None and trace.culprit.samples == [4]
    (fix,) = leaving(trace)
    assert fix.code == (
        "keep = x.flatten(1).any(1)\nx, y = x[keep], y[keep]\nshares = x / x.sum(1, keepdim=True)"
    )
    assert (fix.title, fix.verdict) == ("leave out sample 4, where `x` is all zeros", "finite")
    assert "1 of 6 samples is left out" in fix.why
    (edit,) = fix.edits
    rows = PROGRAM.splitlines()
    rows[edit.first - 1 : edit.last] = edit.rows()
    other = loaded(tmp_path / "mended.py", "\n".join(rows) + "\n")
    losses = [other["train"](x, y).item() for x, y in batches(0.0)]
    assert trace.replay(fix).loss == pytest.approx(losses[2], rel=1e-6)
    loaded_trace = nanlab.load(trace.save(tmp_path / "shares.nanlab"))
    (again,) = leaving(loaded_trace)
    assert again == fix and loaded_trace.replay(again).loss == trace.replay(fix).loss
    with pytest.raises(nanlab.NanlabError, match="does not go together with lr="):
        trace.replay(fix, lr=0.1)


def test_batch_of_a_loop_is_cut_once_all_of_it_stands(tmp_path: Path) -> None:
    text = PROGRAM.replace("def train(x, y):", "def train(x, y):\n    x = x * 2").replace(
        "    opt.zero_grad()\n", "    opt.zero_grad()\n    weight = y + 1\n"
    )
    text = text.replace(".square().mean()", ".square().mul(weight).mean()")
    (fix,) = leaving(watched(loaded(tmp_path / "doubled.py", text), batches(0.0)))
    assert fix.verdict == "finite" and "keep = x.flatten(1).any(1)" in fix.code


@pytest.mark.usefixtures("untried")  # else zeros are right
def test_rows_that_nobody_wrote_are_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What their memory holds is by chance, in a replay too."""
    asked: list[nanlab.Finding] = []
    monkeypatch.setattr(
        remedies, "_leaving_out", lambda trace, found, **_: asked.append(found) or []
    )
    layer = nn.Linear(5, 1)
    with nanlab.watch(layer, on_fault="record") as trace:
        torch.use_deterministic_algorithms(True)  # fills memory with NaN
        try:
            batch = torch.empty(4, 6, 5)
        finally:
            torch.use_deterministic_algorithms(False)
        batch[0] = 1.0
        layer(batch).mean().backward()
    assert trace.culprit is not None and trace.culprit.cause == "uninitialised-memory"
    assert "allocate zeros" in [fix.title for fix in trace.culprit.fixes] and not asked


def test_most_of_a_batch_is_not_left_out(tmp_path: Path) -> None:
    data = batches(0.0)
    data[2][0][1:] = 0.0
    assert leaving(watched(loaded(tmp_path / "sums.py"), data)) == []


def test_samples_are_told_by_what_was_made_of_them_where_their_data_are_like_others(
    tmp_path: Path,
) -> None:
    data = batches(0.0)
    data[2][0][4] = torch.tensor([1.0, -1.0, 2.0, -2.0])
    (fix,) = leaving(watched(loaded(tmp_path / "sums.py"), data))
    assert fix.title == "leave out sample 4, where `shares` is not finite"


TWO = """
import torch
from torch import nn

torch.manual_seed(0)
net, head = nn.Linear(4, 3), nn.Linear(3, 1)


def train(x, y):
    shares = x / x.sum(1, keepdim=True)
    loss = (head(net(shares))[:, 0] - y).square().mean() - shares.log().mean()
    loss.backward()


def run():
    for i in range(3):
        x, y = torch.rand(6, 4), torch.rand(6)
        if i == 2:
            x[4] = 0
        train(x, y)
"""


def test_where_no_other_fix_is_right_it_is_told_first(tmp_path: Path) -> None:
    names = loaded(tmp_path / "two.py", TWO)
    with nanlab.watch(names["net"], on_fault="record") as trace:
        names["run"]()
    assert trace.culprit is not None
    first, *others = trace.culprit.fixes
    assert not any(fix.verified for fix in others)
    assert first.left_out is not None and first.verdict == "finite"
    assert first == nanlab.load(trace.save(tmp_path / "two.nanlab")).culprit.fixes[0]


def test_names_are_read_where_a_fault_shows_alone(tmp_path: Path) -> None:
    names = loaded(tmp_path / "healthy.py")
    with nanlab.watch(names["net"]) as trace:
        for x, y in batches(1.0):
            names["train"](x, y)
    assert trace.recording.named == []


def test_function_lets_its_tensors_go_after_its_names_were_read(tmp_path: Path) -> None:
    names = loaded(tmp_path / "kept.py")
    gone: list[weakref.ref[torch.Tensor]] = []

    def run() -> None:
        for x, y in batches(0.0):
            big = x * 1.0
            gone.append(weakref.ref(big))
            names["train"](big, y)
            del big
        assert gone[-1]() is None

    with nanlab.watch(names["net"], on_fault="record", budget=0) as trace:
        run()
    assert {named.name for named in trace.recording.named} >= {"x", "y", "big"}


BRANCHES = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)


def train(x, y, kind="plain"):
    if kind == "none":
        return None
    elif x.sum() > 0:
        shares = x / x.sum(1, keepdim=True)
        loss = (net(shares)[:, 0] - y).square().mean()
        loss.backward()
"""


def test_branches_of_an_if_are_not_parted(tmp_path: Path) -> None:
    names = loaded(tmp_path / "branches.py", BRANCHES)
    (fix,) = leaving(watched(names, batches(0.0)))
    (edit,) = fix.edits
    rows = BRANCHES.splitlines()
    rows[edit.first - 1 : edit.last] = edit.rows()
    compile("\n".join(rows), "mended", "exec")
    assert edit.text.splitlines()[-1] == 'if kind == "none":'


def test_rows_that_the_tensors_do_not_have_are_refused(tmp_path: Path) -> None:
    trace = watched(loaded(tmp_path / "shares.py"), batches(0.0))
    (fix,) = leaving(trace)
    assert fix.left_out is not None
    other = replace(fix, left_out=replace(fix.left_out, rows=10**12))
    with pytest.raises(nanlab.NotReplayable, match="other numbers of rows"):
        trace.replay(other)


LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
net = nn.Linear(3, 2)
data = TensorDataset(torch.randn(COUNT, 3))
loader = DataLoader(data, batch_size=4)
def epoch():
    for (x,) in loader:
        net.zero_grad()
        spread = net(x).std(0)
        (1 - spread).relu().mean().backward()
"""


@pytest.mark.parametrize(("count", "told"), [(9, 1), (1, 0)])
def test_last_batch_of_one_sample_is_dropped_by_the_loader(
    count: int, told: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    names = loaded(tmp_path / "train.py", LOADER.replace("COUNT", str(count)))
    with nanlab.watch(names["net"], on_fault="record") as trace:
        names["epoch"]()
    assert trace.culprit is not None
    dropped = [fix for fix in trace.culprit.fixes if "drop_last=True" in fix.code]
    assert [(fix.verdict, fix.why) for fix in dropped] == told * [
        ("finite", "the last batch, of 1 sample, is left out")
    ]
    assert all(
        fix.code == "loader = DataLoader(data, batch_size=4, drop_last=True)" for fix in dropped
    )


EPOCHS = """
import math
import torch
from torch import nn
import nanlab

net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.ones(4, 2), torch.ones(4, 1)
y[1] = math.nan


def failed(x, y):
    return (net(x) - y).square().mean()


def run(VALUES):
    for i in range(2):
        failed(x, y)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(2):
            for x, y in [(torch.zeros(4, 2), torch.zeros(4, 1))]:
                failed(x, y)
            for x, y in BATCHES:
                loss = LOSS  # here
                loss.backward()
                opt.step()
            for x, y in [(torch.zeros(4, 2), torch.zeros(4, 1))]:
                failed(x, y)
    for x, y in [(torch.zeros(4, 2), torch.zeros(4, 1))]:
        failed(x, y)
    return trace
"""
CHECKED = """            for x, y in [(torch.zeros(4, 2), torch.zeros(4, 1))]:
                failed(x, y)
"""


@pytest.mark.parametrize(
    ("batches", "loss"),
    [
        ("[(data[0].clone(), data[1])]", "failed(x, y)"),
        ("[(data[0].clone(), data[1])]", "(net(x) - y).square().mean()"),
        ("[0]", "(net(x) - y).square().mean()"),
    ],
)
def test_loop_that_made_the_failing_step_is_edited(batches: str, loss: str, tmp_path: Path) -> None:
    text = EPOCHS.replace("LOSS", loss).replace("BATCHES", batches).replace("VALUES", "x=x, y=y")
    if batches == "[0]":  # one batch for all steps, under its names
        text = text.replace("for x, y in [0]", "for _ in [0]").replace(CHECKED, "")
    text = text.replace("def run", "data = x, y\n\n\ndef run")
    trace = loaded(tmp_path / "epochs.py", text)["run"]()
    edits = [fix.edits[0] for fix in leaving(trace)]
    assert [edit.old.partition("# ")[2] for edit in edits] == ["here"]


SPLIT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
net = nn.Linear(3, 2)
shown = DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=4)
def epoch():
    for x in torch.randn(9, 3).split(4):
        net.zero_grad()
        spread = net(x).std(0)
        (1 - spread).relu().mean().backward()
"""


def test_loader_of_other_data_keeps_its_last_batch(tmp_path: Path) -> None:
    names = loaded(tmp_path / "train.py", SPLIT)
    with nanlab.watch(names["net"], on_fault="record") as trace:
        names["epoch"]()
    assert trace.culprit is not None
    assert not any("drop_last" in fix.code for fix in trace.culprit.fixes)


UNEVEN = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 4)


def train(x):
    centre = net(x)
    wide = torch.exp(centre.abs())
    told = x.clamp(0, 1)
    loss = (told * wide + centre).mean()
    loss.backward()


def run():
    for i in range(3):
        x = torch.rand(6, 4)
        if i == 2:
            x[4] = 1000 + torch.rand(4)
        train(x)
"""


def test_samples_are_not_left_out_behind_the_operation_that_failed_for_them(
    tmp_path: Path,
) -> None:
    names = loaded(tmp_path / "uneven.py", UNEVEN)
    with nanlab.watch(names["net"], on_fault="record") as trace:
        names["run"]()
    assert trace.culprit is not None and trace.culprit.samples == [4]
    assert not any("`told` is" in fix.title for fix in trace.culprit.fixes)


LENGTHS = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(5, 1)


def spread(x):
    flat = x.flatten(1)
    shares = flat / flat.std(1, keepdim=True)
    place = torch.ones(2 * len(x), 1)[: len(x)]
    return net(torch.cat([shares, place], 1))


def run():
    for i in range(3):
        x = torch.rand(6, 2, 2)
        if i == 2:
            x[4] = 0
        loss = spread(x).square().mean()
        loss.backward()
"""


def test_samples_that_a_replay_could_not_leave_out_are_told_behind_what_fails(
    tmp_path: Path,
) -> None:
    names = loaded(tmp_path / "lengths.py", LENGTHS)
    with nanlab.watch(names["net"], on_fault="record") as trace:
        names["run"]()
    assert trace.culprit is not None
    (last,) = leaving(trace)
    assert last.may_raise and last.title == "leave out sample 4, where `x` is all zeros"
    failing = Fix("another", "y = 1", verdict="fails")
    assert best_fix(replace(trace.culprit, fixes=[last, failing])) is failing
    assert _rank(failing) < _rank(last)


LOGS = """
def logs_of_gaps(x):
    return (x[:, 1:] - x[:, :-1]).log()
"""
GAPS = """
import torch
from torch import nn
from logs_of_gaps import logs_of_gaps

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), {norm}nn.Tanh(), nn.Linear(4, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def train(x, y):
    opt.zero_grad()
    logs = logs_of_gaps(x)
    loss = (net(y) - logs).square().mean()
    loss.backward()
    opt.step()
    return loss
"""


def tied() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    made = [(torch.rand(6, 4).cumsum(1), torch.rand(6, 3)) for _ in range(3)]
    made[2][0][4, 2] = made[2][0][4, 1]
    return made


@pytest.mark.parametrize(
    ("norm", "verdict"),
    [("", "verified"), ("nn.LayerNorm(4), ", "verified"), ("nn.BatchNorm1d(4), ", "finite")],
)
def test_leaving_out_what_has_no_limit_is_right_where_each_sample_counts_by_itself(
    norm: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages" / "logs_of_gaps"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(LOGS)
    monkeypatch.syspath_prepend(library.parent)
    monkeypatch.delitem(sys.modules, "logs_of_gaps", raising=False)
    trace = watched(loaded(tmp_path / "gaps.py", GAPS.format(norm=norm)), tied())
    assert trace.culprit is not None
    (fix,) = (fix for fix in trace.culprit.fixes if fix.title.startswith("leave out sample 4"))
    assert "keep = x.flatten(1).diff(dim=1).all(1)" in fix.code
    assert fix.verdict == verdict, (fix.why, fix.code)
    assert trace.replay(fix).loss is not None


POOLED = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def train(x, mask, y):
    opt.zero_grad()
    made = net(x)
    lengths = mask.sum(1).tolist()
    pooled = torch.stack([made[i, :n].std(0) for i, n in enumerate(lengths)])
    loss = (pooled.sum(1) - y).square().mean()
    loss.backward()
    opt.step()
    return loss
"""


def test_samples_that_a_loop_takes_one_by_one_are_left_out_by_their_length(
    tmp_path: Path,
) -> None:
    names = loaded(tmp_path / "pooled.py", POOLED)
    torch.manual_seed(1)
    data = [(torch.rand(6, 5, 2), torch.ones(6, 5, dtype=torch.long), torch.rand(6))]
    mask = data[0][1].clone()
    mask[4, 1:] = 0
    data.append((torch.rand(6, 5, 2), mask, torch.rand(6)))
    with nanlab.watch(names["net"], on_fault="record") as trace:
        for each in data:
            names["train"](*each)
    assert trace.culprit is not None
    (fix,) = (fix for fix in trace.culprit.fixes if fix.title.startswith("leave out sample 4"))
    assert fix.verdict == "verified" and "mask.flatten(1).sum(1) > 1" in fix.code, fix.code
    other = loaded(tmp_path / "alone.py", POOLED)
    other["train"](*data[0])
    kept = torch.tensor([0, 1, 2, 3, 5])
    alone = other["train"](*(each[kept] for each in data[1]))
    assert trace.replay(fix).loss == pytest.approx(alone.item(), rel=1e-6)
