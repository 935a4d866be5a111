"""compare: the planted line is found, the set is minimal, and the step leaves no trace behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis.compare import compare_step, delta_debug
from nanlab.errors import TypeMismatchError, UsageError

torch.set_num_threads(1)


class Block(nn.Module):
    """Attention and a layer; with a fault, the queries and keys are enlarged before their product
    and the product reduced after."""

    def __init__(self, width: int, planted: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.enlarged = 400.0 if planted else 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        q, k, v = self.q(h), self.k(h), self.v(h)
        scores = (q * self.enlarged) @ (k * self.enlarged).transpose(-1, -2)  # PLANTED
        scores = scores / self.enlarged**2 / x.shape[-1] ** 0.5
        mask = torch.full(scores.shape[-2:], -1e4).triu(1)
        x = x + self.o((scores + mask).softmax(-1) @ v)
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    def __init__(self, planted: int | None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList([Block(32, i == planted) for i in range(3)])
        self.head = nn.Linear(32, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Cnn(nn.Module):
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)
        self.planted = planted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x)) + 0.1
        if self.planted:
            energy = (h * 1e-4) ** 2  # PLANTED
            h = energy.float().sqrt() * 1e4
        h = torch.relu(self.second(h))
        return self.head(h.mean((2, 3)))  # type: ignore[no-any-return]


def gpt(planted: int | None) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    torch.manual_seed(0)
    net = Gpt(planted)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    ids = torch.randint(0, 50, (4, 16))

    def step() -> torch.Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(
            net(ids).float().flatten(0, 1), ids.roll(-1, 1).flatten()
        )
        loss.backward()
        opt.step()
        return loss

    return net, step


def cnn(planted: bool) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    torch.manual_seed(0)
    net = Cnn(planted)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    x, y = torch.randn(4, 1, 12, 12) + 0.5, torch.randint(0, 4, (4,))

    def step() -> torch.Tensor:
        opt.zero_grad()
        noisy = x + 0.01 * torch.randn_like(x)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(noisy)
        loss = 100.0 * nn.functional.cross_entropy(out.float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step


def planted_line() -> dict[str, int]:
    with open(__file__) as file:
        numbers = [i for i, line in enumerate(file, 1) if line.rstrip().endswith("# PLANTED")]
    return {"gpt": numbers[0], "cnn": numbers[1]}


@pytest.mark.parametrize("build", [lambda: gpt(None), lambda: cnn(False)], ids=["gpt", "cnn"])
def test_sound_step_agrees_and_needs_no_line_in_float32(
    build: Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]],
) -> None:
    found = compare_step(build()[1])
    assert found.agrees and found.minimal == [] and found.first_lost is None
    forward = found.table[found.table.phase == "forward"]
    assert len(forward) > 5 and forward.error.max() < 0.1 and (forward.flushed < 0.5).all()
    assert set(found.table.phase) == {"forward", "backward"}


@pytest.mark.parametrize(
    ("name", "build"), [("gpt", lambda: gpt(1)), ("cnn", lambda: cnn(True))], ids=["gpt", "cnn"]
)
def test_planted_line_is_found_and_no_line_of_the_set_can_be_left_out(
    name: str, build: Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]
) -> None:
    found = compare_step(build()[1])
    assert not found.agrees
    assert (__file__, planted_line()[name]) in found.minimal
    assert found.proof.breaks.all() and len(found.proof) == len(found.minimal)
    assert found.first_lost is not None and found.first_lost["line"] == planted_line()[name]
    assert found.seconds < 60


def test_weights_optimizer_and_random_state_are_as_before() -> None:
    net, step = cnn(True)
    before = [p.detach().clone() for p in net.parameters()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    compare_step(step, search=False)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_the_step_itself_runs_once_or_a_second_time_under_autocast() -> None:
    for build, times in ((lambda: cnn(True), 1), (lambda: gpt(1), 2)):
        net, step = build()
        calls: list[int] = []
        handle = net.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found = compare_step(step)
        handle.remove()
        assert len(calls) == times < found.trials


@pytest.mark.parametrize("planted", [False, True])
def test_errors_of_gradients_are_those_of_the_two_programs_run_for_real(planted: bool) -> None:
    net, step = cnn(planted)

    def gradients(enabled: bool) -> dict[str, torch.Tensor]:
        state = torch.get_rng_state()
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        autocast = torch.autocast
        torch.autocast = lambda *a, **k: autocast("cpu", dtype=torch.float16, enabled=enabled)  # type: ignore[misc,assignment]
        try:
            step()
        finally:
            torch.autocast = autocast  # type: ignore[misc]
        found = {
            n: p.grad.detach().double() for n, p in net.named_parameters() if p.grad is not None
        }
        for name, p in net.named_parameters():
            p.data.copy_(before[name])
            p.grad = None
        torch.set_rng_state(state)
        return found

    found = compare_step(step, search=False).gradients.set_index("parameter")
    wide, low = gradients(False), gradients(True)
    checked = 0
    for name, true in wide.items():
        if not bool(low[name].isfinite().all()):
            assert found.error[name] == float("inf")
        elif float(true.norm()) > 1e-3:  # else it is compared with the largest gradient
            error = float((low[name] - true).norm() / true.norm())
            assert found.error[name] == pytest.approx(error, rel=0.02)
        checked += 1
    assert checked == len(wide) >= 6


class Widened(Cnn):
    """The planted line in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x)) + 0.1
        energy = (h.float() * 1e-4) ** 2
        h = torch.relu(self.second(energy.sqrt() * 1e4))
        return self.head(h.mean((2, 3)))  # type: ignore[no-any-return]


def test_a_program_with_the_lines_in_float32_agrees() -> None:
    _, step = cnn(True)
    assert [line for _, line in compare_step(step).minimal] == [planted_line()["cnn"]]
    torch.manual_seed(0)
    net, (x, y) = Widened(True), (torch.randn(4, 1, 12, 12) + 0.5, torch.randint(0, 4, (4,)))

    def widened() -> torch.Tensor:
        net.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = 100.0 * nn.functional.cross_entropy(out.float(), y)
        loss.backward()
        return loss

    assert compare_step(widened).agrees


def test_the_step_finds_gradients_optimizer_scaler_schedule_and_counters_as_they_were() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x, seen, counts = torch.randn(6, 4), [0], {"steps": 0}

    def step() -> torch.Tensor:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        schedule.step()
        seen[0] += 1
        counts["steps"] += 1
        net.eval()
        return loss

    step()
    net.train()

    def state() -> str:
        grads = [None if p.grad is None else p.grad.tolist() for p in net.parameters()]
        held = (opt.state_dict(), schedule.state_dict(), scaler.state_dict(), net.state_dict())
        return repr((held, grads, seen, counts, net.training, torch.get_rng_state().tolist()))

    before = state()
    compare_step(step)
    assert state() == before


def test_delta_debugging_finds_a_set_of_which_nothing_can_be_left_out() -> None:
    for needed in ({3}, {2, 11}, {0, 7, 15}, set(range(16))):
        found = delta_debug(list(range(16)), lambda items, needed=needed: needed <= set(items))  # type: ignore[misc]
        assert set(found) == needed


def test_misuse_says_what_was_expected() -> None:
    with pytest.raises(TypeMismatchError, match="expected a function"):
        compare_step(3)  # type: ignore[arg-type]
    with pytest.raises(TypeMismatchError, match=r"float16 or torch\.bfloat16"):
        compare_step(lambda: None, torch.float32)
    with pytest.raises(UsageError, match="calls backward"):
        compare_step(lambda: torch.zeros(1))


def test_each_cast_is_listed_with_what_it_lost_of_its_own_operand() -> None:
    torch.manual_seed(0)
    net = nn.Linear(64, 8)
    x = torch.randn(16, 64) * 10.0 ** torch.randint(-9, 6, (16, 64))

    def step() -> torch.Tensor:
        net.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)  # CASTS
        loss = out.float().clamp(-10, 10).nan_to_num().mean()
        loss.backward()
        return loss

    casts = compare_step(step, search=False).casts
    (row,) = [r for r in casts.itertuples() if r.numel == x.numel()]
    half = x.half()
    assert (row.phase, row.source, row.target) == ("forward", "float32", "float16")
    with open(__file__) as file:
        assert row.line == next(
            i for i, line in enumerate(file, 1) if line.rstrip().endswith("# CASTS")
        )
    assert row.flushed == pytest.approx(float(((half == 0) & (x != 0)).float().mean()))
    assert row.overflowed == pytest.approx(float(half.isinf().float().mean()))
    weight = next(r for r in casts.itertuples() if r.numel == 512)
    w = net.weight.detach()
    gap = (w.half().double() - w.double()).norm() / w.double().norm()
    assert weight.error == pytest.approx(float(gap))


def test_dropout_is_no_difference_between_the_two_runs() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    x = torch.randn(16, 32)

    def step() -> torch.Tensor:
        net.zero_grad()
        loss = net(x).float().square().mean()
        loss.backward()
        return loss

    found = compare_step(step)
    assert found.agrees and found.first_lost is None
    assert found.table.error.max() < 0.1 and not set(found.table.op) & {"empty_like", "empty"}


def test_a_softmax_of_half_numbers_runs_when_a_line_before_it_is_widened() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 16) * 60)

    def step() -> torch.Tensor:
        h = (weight.half() @ weight.half().T) / 4000  # overflows
        loss = h.softmax(-1).float().square().sum()
        loss.backward()
        return loss

    found = compare_step(step)
    assert not found.agrees and found.finite
    assert [line for _, line in found.minimal] == [step.__code__.co_firstlineno + 1]


def test_a_step_that_is_not_finite_in_float32_either_says_so() -> None:
    weight = nn.Parameter(torch.zeros(4))
    found = compare_step(lambda: weight.sqrt().sum().backward())
    assert not found.finite
    assert "not finite in float32 either" in repr(found)


def test_a_step_that_converts_its_model_finds_it_as_it_was() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).half()
    x = torch.randn(4, 3)

    def step() -> torch.Tensor:
        loss = model.float()(x).pow(2).mean()
        loss.backward()
        return loss

    before = model.weight.detach().clone()
    compare_step(step)
    assert model.weight.dtype == torch.float16 and torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_the_run_of_a_comparison_does_not_become_the_last_trace() -> None:
    layer = nn.Linear(4, 2)
    before = nanlab.last
    compare_step(lambda: layer(torch.ones(3, 4)).mean().backward(), search=False)
    assert nanlab.last is before


def test_a_dtype_or_tolerance_of_another_type_is_shown_as_it_was_given() -> None:
    step = nn.Linear(2, 1)
    with pytest.raises(TypeMismatchError, match="got 'float16'"):
        compare_step(lambda: step(torch.ones(1, 2)).sum().backward(), "float16")  # type: ignore
    with pytest.raises(TypeMismatchError, match="number for tolerance, got 'a'"):
        compare_step(lambda: None, tolerance="a")  # type: ignore
    with pytest.raises(TypeMismatchError, match="got 'float16'"):
        nanlab.advise_eps(lambda x, eps: x + eps, torch.ones(2), "float16")  # type: ignore
