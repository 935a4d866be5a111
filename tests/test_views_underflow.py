"""The underflow explorer, as the kernel holds it."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from fake_trace import Builder, fake_trace, gradient
from torch import nn

import nanlab
from nanlab.analysis.precision import cast_shares
from nanlab.errors import UsageError
from nanlab.trace import Trace
from nanlab.views.underflow import by_loss, underflow


def test_the_tensor_that_float16_would_spoil_most_comes_first() -> None:
    ordered = by_loss(fake_trace())
    share = ((ordered["fp16_zero"] + ordered["fp16_inf"]) / ordered["numel"]).to_numpy(
        dtype="float64"
    )
    assert (share[:-1] >= share[1:]).all()
    assert share[0] > 0.9


def test_between_equal_losses_the_earlier_comes_first() -> None:
    build = Builder()
    for line in (4, 5):
        build.op(gradient(1, -60), step=0, phase="forward", op="mul", module="", line=line)
    made = underflow(build.trace([], []))
    assert made.row is not None
    assert made.row["line"] == 4


def test_every_tensor_of_a_run_adds_up_to_numel() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    with nanlab.watch(model, on_fault="record") as trace:
        (model(torch.randn(32, 8)) / 0.0).square().mean().backward()
    made = underflow(trace)
    assert len(made.tensors) > 20
    for tensor in made.tensors:
        data = tensor["data"]
        assert (
            sum(data["counts"]) + data["zero"] + data["nan"] + data["posinf"] + data["neginf"]
            == data["numel"]
        )


def test_shares_are_those_of_the_chosen_formats_at_the_chosen_scale() -> None:
    trace = fake_trace()
    made = underflow(trace)
    made.chosen, made.log2_scale, made.selected = ["float16", "float8_e5m2"], 12, 3
    assert made.row is not None
    expected = cast_shares(trace.histogram(int(made.row["position"])), torch.float8_e5m2, 12)
    assert made.shares.loc["float8_e5m2", "zero"] == expected.zero
    assert (
        made.shares[["zero", "subnormal", "normal", "overflow"]].sum(axis=1).tolist()
        == made.shares["numel"].tolist()
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log2_scale", 99, "from -16 to 40"),
        ("chosen", ["float12"], "expected formats"),
        ("selected", 10_000, "tensor"),
    ],
)
def test_impossible_choices_are_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        setattr(underflow(fake_trace()), name, value)


def test_all_gradients_together_have_a_scale_of_their_own() -> None:
    trace = fake_trace(faulty=False)
    made = underflow(trace)
    backward = trace.ops[trace.ops["phase"] == "backward"]
    assert made.gradients["tensors"] == len(backward)
    assert sum(made.gradients["data"]["counts"]) == int(
        (backward["numel"] - backward["zero"]).sum()
    )
    assert made.gradients["best"]["float16"] > 0


def test_the_float32_twin_stands_beside_a_half_precision_result() -> None:
    trace = fake_trace()
    position = int(trace.ops["position"].iloc[0])
    twin = pd.Series([5, 7], index=pd.Index([-40, -39], name="exponent"))
    trace.shadow = pd.DataFrame({"position": [position], "flushed": [12], "exponents": [twin]})
    tensor = next(t for t in underflow(trace).tensors if t["label"].endswith(f"#{position}"))
    others = dict.fromkeys(("zero", "neginf", "posinf", "nan"), 0)
    assert tensor["twin"] == {"first": -40, "counts": [5, 7], "flushed": 12} | others


def test_the_state_is_json_without_nan() -> None:
    made = underflow(fake_trace())
    json.dumps([made.tensors, made.gradients, made.formats], allow_nan=False)


def test_gradients_tell_the_loss_scale_they_bore_and_forward_results_none() -> None:
    model = nn.Linear(4, 1)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.1),
        torch.amp.GradScaler("cpu", init_scale=1024.0),
    )
    with nanlab.watch(model) as trace:
        scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    made = underflow(trace)
    phases = made.rows["phase"].tolist()
    told = {
        (phase, t["run_scale"], t["scalable"])
        for phase, t in zip(phases, made.tensors, strict=True)
    }
    assert {("forward", 0, False), ("backward", 10, True)} <= told
    assert not any(scale for phase, scale, _ in told if phase != "backward")
    assert made.gradients["run_scale"] == 10
    first = next(t for t in made.tensors if t["run_scale"])
    assert f">2^{first['best']['float16'] + 10}</td>" in made.static_html()


def test_there_is_no_one_loss_scale_for_the_gradients_of_steps_that_had_others() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert trace.steps["loss_scale"].nunique() == 2
    assert underflow(trace).gradients["run_scale"] is None


def test_the_static_line_counts_the_tensors_that_are_not_listed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = len(underflow(fake_trace()).tensors)
    monkeypatch.setattr("nanlab.views.underflow.MOST", 5)
    made = underflow(fake_trace())
    assert (len(made.tensors), made.left_out) == (5, whole - 5)
    assert made.static_text().startswith(f"Underflow explorer: {whole} tensors; ")


def test_that_nothing_would_be_lost_is_said() -> None:
    with nanlab.watch() as trace:
        torch.ones(3, requires_grad=True).exp().sum().backward()
    assert underflow(trace).static_text().endswith("; float16 would flush and overflow nothing")


def test_nothing_recorded_is_said() -> None:
    made = underflow(Builder().trace([], []))
    assert made.row is None
    assert made.shares["numel"].tolist() == [0]
    assert "nothing was recorded" in made.static_html()


def test_static_stand_in_has_a_picture_and_a_table() -> None:
    html = underflow(fake_trace()).static_html()
    assert "data:image/svg+xml" in html
    assert "best scale" in html


def test_what_an_optimizer_keeps_in_full_precision_comes_last() -> None:
    build = Builder()
    for phase, exponent in (("optimizer", -60), ("forward", -2)):
        build.op(gradient(1, exponent), step=0, phase=phase, op="mul", module="", line=4)
    made = underflow(build.trace([], []))
    assert [str(phase) for phase in made.rows["phase"]] == ["forward", "optimizer"]


def test_a_result_lost_whole_in_float16_is_listed_at_its_own_line() -> None:
    layer = nn.Linear(16, 16, bias=False)
    nn.init.normal_(layer.weight, std=1e-6)
    with nanlab.watch(on_fault="record") as trace:
        h = layer(1e-3 * torch.randn(8, 16))
        ((h - h.mean()) * (h.var() + 1e-9).rsqrt()).sum().backward()
    row = underflow(trace).row
    assert row is not None
    assert row["fp16_zero"] == row["numel"]
    assert "layer(" in row["source"]


def watched_in_half() -> Trace:
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 8, bias=False)
    torch.nn.init.normal_(net.weight, std=1e-6)
    net, x = net.half(), (2e-3 * torch.randn(4, 16)).half()
    x[0] = float("inf")
    with nanlab.watch(net, on_fault="record", shadow="float32") as trace:
        scores = net(x)
        (scores.relu().pow(2) / 3).mean().backward()
    return trace


def test_every_histogram_and_every_twin_of_a_run_adds_up_to_numel() -> None:
    made = underflow(watched_in_half())
    assert any(tensor["twin"] for tensor in made.tensors)
    for tensor, numel in zip(made.tensors, made.rows["numel"], strict=True):
        for parts in filter(None, (tensor["data"], tensor["twin"])):
            total = sum(parts["counts"]) + sum(
                parts[name] for name in ("zero", "neginf", "posinf", "nan")
            )
            assert total == numel, tensor["label"]


def test_shares_of_a_flushed_tensor_are_those_of_its_float32_twin() -> None:
    made = underflow(watched_in_half())
    made.selected = next(i for i, op in enumerate(made.rows["op"]) if op == "mm")
    assert made.row is not None
    twin = made.tensors[made.selected]["twin"]
    shares = made.shares.loc["float16"]
    assert shares["numel"] == sum(twin["counts"])
    assert 0 < twin["flushed"] <= shares["zero"] + shares["limit"]


def half_precision(shadow: str | None = None) -> Trace:
    """A product that float16 flushes in part, and a sum that overflows."""
    with nanlab.watch(on_fault="record", shadow=shadow) as trace:
        small = torch.full((100,), 1e-4, dtype=torch.float16)
        torch.cat([small[:30], torch.ones(70, dtype=torch.float16)]) * small  # 30 of 1e-8
        torch.full((4,), 60000.0, dtype=torch.float16) * 2
    return trace


@pytest.mark.parametrize("shadow", [None, "float32"])
def test_zeros_that_were_other_values_are_counted_apart(shadow: str | None) -> None:
    made = underflow(half_precision(shadow))
    product = next(
        t for t in made.tensors if t["label"].startswith("mul") and t["data"]["numel"] == 100
    )
    assert (product["data"]["zero"], product["data"]["flushed"], product["data"]["overflowed"]) == (
        30,
        30,
        0,
    )


def test_what_has_overflowed_already_is_counted_and_named() -> None:
    made = underflow(half_precision())
    assert made.tensors[0]["data"]["overflowed"] == 4
    assert made.static_text().endswith(
        "mul loses most: as it ran in float16 4 became infinite of 4 values"
    )
    assert "lost as it ran" in made.static_html()


def scaled_run(kind: str, log2_scale: int = 0) -> tuple[Trace, torch.Tensor]:
    """A step with its loss multiplied by 2**log2_scale, and the gradient of its last layer's
    bias, before anything divides it by the scale again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    x, scale = torch.randn(64, 16), 2.0**log2_scale
    if kind == "float16":
        net, x = net.half(), x.half()
    with nanlab.watch(net, on_fault="record") as trace:
        if kind == "scaler":
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            with torch.autocast("cpu", torch.float16):
                loss = 1e-4 * net(x).square().mean()
            scaler.scale(loss).backward()
        else:
            (1e-4 * net(x).square().mean() * scale).backward()
    assert isinstance(net[2].bias.grad, torch.Tensor)
    return trace, net[2].bias.grad


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("log2_scale", [-6, 14, 30])
@pytest.mark.parametrize("kind", ["float32", "float16", "scaler"])
def test_at_each_loss_scale_a_gradient_is_that_of_a_run_at_that_scale(
    kind: str, log2_scale: int
) -> None:
    trace, _ = scaled_run(kind)
    made, (_, expected) = underflow(trace), scaled_run(kind, log2_scale)
    row = next(p.gradient for p in trace.recording.training.parameters if p.gradient is not None
               and trace.recording.parameter_names[p.owner] == "2.bias")  # fmt: skip
    made.selected = int((made.rows["position"] == row).to_numpy().argmax())
    made.log2_scale, made.asked = log2_scale, [made.selected, log2_scale]
    data = made.replayed["data"]
    zero, nan = int((expected == 0).sum()), int(expected.isnan().sum())
    assert (data["zero"], data["nan"], data["numel"]) == (zero, nan, expected.numel())
    assert data["posinf"] + data["neginf"] == int(expected.isinf().sum())
    exponents = expected[expected.isfinite() & (expected != 0)].double().abs().log2().floor()
    counts = {data["first"] + i + log2_scale: n for i, n in enumerate(data["counts"]) if n}
    values, times = exponents.unique(return_counts=True)
    assert counts == dict(zip(values.int().tolist(), times.tolist(), strict=True))
    made.chosen = ["float16", "bfloat16", "float8_e5m2"]
    assert set(made.shares["by"]) == {"replay"}
    if expected.dtype == torch.float32:
        for name, shares in made.shares.iterrows():
            cast = expected[expected.isfinite()].to(getattr(torch, str(name))).float()
            assert (shares["zero"], shares["overflow"]) == (
                int((cast == 0).sum()) - zero,
                int((~cast.isfinite()).sum()),
            )


def test_values_of_a_forward_result_are_multiplied_and_rounded_one_by_one() -> None:
    with nanlab.watch(on_fault="record") as trace:
        x = torch.linspace(1e-9, 3e-7, 500) + 0
    made = underflow(trace)
    made.selected = next(i for i, op in enumerate(made.rows["op"]) if op == "add")
    for k in (0, 3, 9):
        made.log2_scale = k
        half = (x * 2**k).half()
        shares = made.shares.loc["float16"]
        assert shares["by"] == "replay" and shares["limit"] == 0
        assert shares["zero"] == int((half == 0).sum())
        assert shares["subnormal"] == int(((half != 0) & (half < 2**-14)).sum())


def test_a_step_that_cannot_be_run_again_is_counted_by_histogram_and_says_why() -> None:
    y = torch.ones(4, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (y * 1e-3).backward(torch.full((4,), 0.5))
    made = underflow(trace)
    made.selected = next(i for i, p in enumerate(made.rows["phase"]) if p == "backward")
    made.log2_scale, made.asked = 3, [made.selected, 3]
    assert made.replayed["reason"] == "backward was given the gradient that it began with"
    assert set(made.shares["by"]) == {"histogram"}


def test_a_replay_is_made_once_for_each_tensor_and_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanlab.views import underflow as module

    trace, _ = scaled_run("float16")
    made, runs = underflow(trace), list[int]()
    whole = module.at_scale
    monkeypatch.setattr(module, "at_scale", lambda *a: runs.append(a[2]) or whole(*a))
    for scale in (5, 6, 5, 6):
        made.log2_scale, made.asked = scale, [made.selected, scale]
        assert len(made.shares)
    assert runs == [5, 6]
