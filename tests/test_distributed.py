"""Training that is spread over processes; here over one, which takes the same ways through
torch."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import nanlab
from nanlab.trace import Trace


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "lo" in (name for _, name in socket.if_nameindex()):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # no machine's name needs to be looked up
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def network(kind: str) -> nn.Module:
    if kind == "sharded" and not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("fully_shard of torch 2.6 runs on no CPU")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    if kind == "replicated":
        return DistributedDataParallel(model)
    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def train(model: nn.Module, eps: float = 1e-8, spoil: bool = False) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, eps=eps)
    generator, losses = torch.Generator().manual_seed(1), []
    for i in range(3):
        out = model(torch.randn(8, 4, generator=generator))
        loss = out.square().mean() if eps else out.sum() * 0.0
        if spoil and i == 1:
            loss = loss + torch.log(torch.relu(out - 100.0)).mean()  # SPOILT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def watched(kind: str, eps: float = 1e-8, spoil: bool = False) -> tuple[Trace, list[float]]:
    model = network(kind)
    with nanlab.watch(model, on_fault="record") as trace:
        losses = train(model, eps, spoil)
    assert not trace.notes
    return trace, losses


@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_losses_are_the_same_and_each_parameter_has_its_row(kind: str) -> None:
    trace, losses = watched(kind)
    assert losses == train(network(kind)) and trace.culprit is None
    rows = trace.parameters
    assert len(rows) == 3 * 4 and not rows.duplicated(["step", "parameter"]).any()
    assert rows[["value_rms", "gradient_rms", "update_rms"]].notna().all(axis=None)


@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_a_fault_has_its_line_cause_and_fix(kind: str) -> None:
    culprit = watched(kind, spoil=True)[0].culprit
    assert culprit is not None and (culprit.cause, culprit.step) == ("log-of-zero", 1)
    assert culprit.source.endswith("# SPOILT") and any(fix.verified for fix in culprit.fixes)


def test_a_fault_among_sharded_parameters_is_looked_into_where_they_are() -> None:
    sharded, whole = (watched(kind, eps=0.0)[0].culprit for kind in ("sharded", "replicated"))
    assert sharded is not None and whole is not None
    assert (sharded.phase, sharded.cause, sharded.title) == ("optimizer", whole.cause, whole.title)
    assert sharded.evidence.equals(whole.evidence)
    # no replay of a sharded step: its optimizer is tried with no other settings
    assert {fix.code for fix in sharded.fixes} <= {fix.code for fix in whole.fixes}


def test_a_sharded_parameter_that_stands_still_is_tried_in_float32_where_it_is() -> None:
    model = network("sharded").bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
    found = next(
        f for f in trace.findings if f.cause == "absorbed-update" and f.severity == "error"
    )
    assert not trace.notes and any("float32" in fix.title for fix in found.fixes)
