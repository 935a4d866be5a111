"""Updates that change nothing are kept, and tried again in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture.standing import MOST
from nanlab.rules import Finding


def absorbed(trace: nanlab.Trace) -> list[Finding]:
    return [f for f in trace.findings if f.cause == "absorbed-update"]


@pytest.mark.parametrize("foreach", [False, True])
def test_an_update_that_bfloat16_absorbs_is_shown_to_move_in_float32(foreach: bool) -> None:
    net = nn.ParameterList([nn.Parameter(torch.ones(16, dtype=torch.bfloat16)) for _ in range(2)])
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=foreach)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(3):
            opt.zero_grad()
            sum(p.sum() for p in net).backward()
            opt.step()
    fix = absorbed(trace)[0].fixes[0]
    assert fix.verified and "16 of 16 elements move" in fix.title


def test_an_average_by_hand_over_a_list_is_shown_to_move_in_float32() -> None:
    net, average = nn.Linear(4, 4), nn.Linear(4, 4).bfloat16().requires_grad_(False)
    both = nn.ModuleList([net, average])
    with nanlab.watch(both, on_fault="record") as trace:
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), [p.bfloat16() for p in net.parameters()], 1e-5)
    fix = absorbed(trace)[0].fixes[0]
    assert fix.verified and "elements move, where none did" in fix.title


def test_what_does_not_move_in_float32_either_is_not_said_to() -> None:
    w = nn.Parameter(torch.ones(16, dtype=torch.bfloat16))
    opt = torch.optim.SGD([w], lr=1e-12)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(3):
            opt.zero_grad()
            w.sum().backward()
            opt.step()
    assert not any(fix.verified for finding in absorbed(trace) for fix in finding.fixes)


def test_nothing_is_kept_of_float32_and_little_of_a_large_net() -> None:
    kept = []
    for dtype in (torch.float32, torch.bfloat16):
        net = nn.ParameterList([nn.Parameter(torch.ones(8, dtype=dtype)) for _ in range(MOST + 4)])
        opt = torch.optim.SGD(net.parameters(), lr=1e-12)
        with nanlab.watch(net, on_fault="record") as trace:
            for _ in range(3):
                opt.zero_grad()
                sum(p.sum() for p in net).backward()
                opt.step()
        kept.append(len(trace.recording.standing))
    assert kept[0] == 0 and 0 < kept[1] <= MOST
