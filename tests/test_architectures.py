"""Models of transformers, from small random configurations, train the same under a watch, and raise
no alarm."""

from __future__ import annotations

import pytest
from architectures import ARCHITECTURES, build

import nanlab


@pytest.mark.examples(every=4)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture_trains_the_same_and_is_healthy(name: str) -> None:
    _, step = build(name)
    bare = [step(i).item() for i in range(3)]
    model, step = build(name)
    watched = []
    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(3):
            watched.append(step(i).item())
    assert not trace.notes
    assert watched == bare
    assert trace.culprit is None
    assert [f for f in trace.findings if f.severity == "error"] == []
    assert len(trace.steps) == 3
    assert all(trace.replay(step=i).identical for i in (1, 2))  # those that are kept
    inside = trace.ops[(trace.ops.phase == "forward") & (trace.ops.module != "")]
    assert inside.module.str.contains(".", regex=False).any()
    known = {n for n, _ in model.named_modules()}
    # a module that is no attribute of another (a loss made anew in each forward, an activation kept
    # in a dict) bears its class name
    assert all(name.split(".")[-1][:1].isupper() for name in set(inside.module) - known)
