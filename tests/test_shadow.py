"""The float32 twin of each half-precision operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import nanlab


def test_a_linear_layer_that_flushes_everything_is_shown_at_its_own_row() -> None:
    layer = nn.Linear(8, 8, bias=False)
    nn.init.normal_(layer.weight, std=1e-6)
    with nanlab.watch(layer, shadow="float32") as trace, torch.autocast("cpu", dtype=torch.float16):
        layer(torch.full((4, 8), 1e-4))
    mm = trace.shadow[trace.shadow.op == "mm"].iloc[0]
    assert mm.numel == 32
    assert mm.flushed == 32
    assert int(mm.exponents.sum()) == 32
    assert trace.ops.loc[mm.position, "zero"] == 32


def test_a_casts_twin_is_what_was_cast() -> None:
    x = torch.tensor([1.0, 1e-9, 7e4, 0.0])
    with nanlab.watch(shadow=torch.float32, on_fault="record") as trace:
        x.half()
    row = trace.shadow.iloc[0]
    assert (row.op, row.flushed, row.overflowed) == ("_to_copy", 1, 1)


def test_in_place_updates_of_half_parameters_have_a_twin() -> None:
    weight = torch.ones(4, dtype=torch.float16)
    with nanlab.watch(shadow="float32") as trace:
        weight.add_(torch.full((4,), 1e-5, dtype=torch.float16))
    row = trace.shadow[trace.shadow.op == "add_"].iloc[0]
    assert 0 < row.relative_error < 2**-10
    assert torch.equal(weight, torch.ones(4, dtype=torch.float16))


def test_a_shadow_changes_no_bit_of_the_program() -> None:
    def run(shadow: str | None, watched: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(6, 12), nn.Dropout(0.3), nn.GELU(), nn.Linear(12, 1)
        ).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def train() -> None:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(5, 6).bfloat16()).square().mean().backward()
                optimizer.step()

        if watched:
            with nanlab.watch(model, shadow=shadow):
                train()
        else:
            train()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(run(None, False), run("float32", True))


def _batch_norm() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(3, 2, 6, 6)).square().mean().backward()
    return [*model.parameters(), *model.buffers()]


def _average() -> list[torch.Tensor]:
    kept, new = torch.ones(5), torch.randn(5).bfloat16()
    kept.mul_(0.9).add_(new, alpha=0.1)
    kept.lerp_(new.float(), 0.5)
    return [kept]


def _lists() -> list[torch.Tensor]:
    masters, grads = [torch.ones(3), torch.ones(4)], [torch.randn(3).half(), torch.randn(4).half()]
    torch._foreach_add_(masters, grads, alpha=-0.1)
    return masters


def _given() -> list[torch.Tensor]:
    out = torch.ones(3)
    torch.add(torch.randn(3).half(), 1, out=out)
    return [out, torch.ones(3).index_add_(0, torch.tensor([0, 0, 2]), torch.randn(3))]


def _muon() -> list[torch.Tensor]:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = nn.Linear(6, 4, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("program", [_batch_norm, _average, _lists, _given, _muon])
def test_a_shadow_writes_no_wider_tensor_of_the_program_twice(
    program: Callable[[], list[torch.Tensor]],
) -> None:
    torch.manual_seed(0)
    alone = program()
    torch.manual_seed(0)
    with nanlab.watch(shadow="float32"):
        shadowed = program()
    assert all(torch.equal(a, b) for a, b in zip(alone, shadowed, strict=True))


def test_twins_are_there_without_a_flag_and_the_diagnosis_does_not_wait_for_them() -> None:
    with nanlab.watch() as trace:
        torch.full((3,), 1e-4).half() * 1e-5
    assert {f.severity for f in trace.findings} == {"warning"}
    assert trace.recording.twins_made is None
    row = trace.shadow[trace.shadow.op == "mul"].iloc[0]
    assert (row.flushed, row.flushed_share) == (3, 1.0)


def test_a_step_that_cannot_be_run_again_has_no_twins_and_says_why() -> None:
    with nanlab.watch(shadow="float32", budget=0) as trace:
        torch.full((3,), 1e-4).half() * 1e-5
    assert trace.shadow.empty
    assert [note for note in trace.notes if "twins" in note and "budget=0" in note]


@pytest.mark.parametrize("steps", [6])
def test_twins_of_folded_steps_are_dropped(steps: int) -> None:
    model = nn.Linear(4, 2).half()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nanlab.watch(model, shadow="float32", keep=2) as trace:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(3, 4).half()).sum().backward()
            optimizer.step()
    assert set(trace.shadow.step) == {4, 5}
