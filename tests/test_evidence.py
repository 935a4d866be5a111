"""What is kept of an operation that is looked into."""

from __future__ import annotations

import torch

import nanlab


def test_a_birth_inside_torch_func_vjp_leaves_the_watch_going() -> None:
    x = torch.tensor([0.0, 0.5, 2.0])
    p = torch.tensor(0.3)
    with nanlab.watch(on_fault="record") as trace:
        _, pull_back = torch.func.vjp(torch.pow, x, p)
        pull_back(torch.ones(3))
        (x + 1).exp()
    assert not [note for note in trace.notes if "nanlab itself failed" in note]
    assert "exp" in set(trace.ops["op"])


def test_a_safe_power_at_zero_is_watched_to_its_end_and_is_no_fault() -> None:
    x = torch.tensor([0.0, 0.5, 2.0], requires_grad=True)
    p = torch.tensor(0.3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        nanlab.safe.pow(x, p).sum().backward()
        (x + 1).exp()
    assert not [note for note in trace.notes if "nanlab itself failed" in note]
    assert "exp" in set(trace.ops["op"]) and trace.culprit is None
