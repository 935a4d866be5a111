"""When fixes are tried: not before somebody asks, and what is true of the step is found out once."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import IPython.lib.pretty
import pytest
import torch

import nanlab
from nanlab.analysis import parts, verdict
from nanlab.rules import Edit, Fix, remedies
from nanlab.rules.titles import told_apart
from nanlab.rules.untried import likeliest_first
from nanlab.trace import Trace


def faulty() -> Trace:
    layer = torch.nn.Linear(3, 2)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(torch.ones(4, 3))
        square = ((h - h.detach()) ** 2).sum(-1)
        square.sqrt().sum().backward()
    return trace


def counted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """The calls of a function by a module."""
    calls: list[Any] = []
    real: Callable[..., Any] = getattr(module, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, count)
    return calls


def test_a_culprit_is_known_before_its_fixes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch, verdict, "patched")
    trace = faulty()
    found = trace.culprit
    assert found is not None and found.cause == "sqrt-at-zero" and not runs
    assert not found.fixes.tried  # type: ignore[attr-defined]
    assert found.fixes[0].verified and runs
    assert found.fixes.tried  # type: ignore[attr-defined]


def test_the_truth_of_a_step_is_found_out_once_for_all_fixes_and_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truths = counted(monkeypatch, parts, "truth")
    trace = faulty()
    assert trace.cure is not None and trace.cure.verified
    assert len(trace.findings[0].fixes) > 2
    assert len(truths) == 1


def test_fixes_whose_trial_was_interrupted_are_tried_when_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = faulty()
    assert trace.culprit is not None
    with monkeypatch.context() as patch:

        def interrupted(*args: Any, **named: Any) -> Any:
            raise KeyboardInterrupt

        patch.setattr(verdict.Judge, "judge", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(trace.culprit.fixes)
    assert trace.culprit.fixes[0].verified


def test_what_others_hang_on_the_nodes_of_code_is_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Held:
        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("it may lead to all of a process")

    # all code shares these; IPython hangs the nodes of a file on them when it shows a traceback
    for context in (ast.Load(), ast.parse("x", mode="eval").body.ctx):  # type: ignore[attr-defined]
        monkeypatch.setattr(context, "parent", Held(), raising=False)
    x = torch.zeros(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (torch.sin(x) / x).sum().backward()
    assert trace.culprit is not None
    assert trace.culprit.fixes[0].verified
    assert not trace.notes


def test_an_exponent_is_bounded_where_it_is_made_for_all_that_read_it() -> None:
    torch.manual_seed(0)
    net = torch.nn.ModuleDict({"mu": torch.nn.Linear(5, 3), "logvar": torch.nn.Linear(5, 3)})
    with torch.no_grad():
        net["logvar"].bias.copy_(torch.tensor([0.0, 1.0, 100.0]))
    x = 0.1 * torch.randn(4, 5)
    with nanlab.watch(net, on_fault="record") as trace:
        mu, logvar = net["mu"](x), net["logvar"](x)
        spread = logvar.exp().sqrt()
        loss = (mu + spread).pow(2).mean() + (logvar.exp() - 1 - logvar).sum(1).mean()
        loss.backward()
    assert trace.culprit is not None and trace.culprit.cause == "exp-overflow"
    found = [f for f in trace.culprit.fixes if "for all its readers" in f.title]
    assert {f.code for f in found} <= {
        f'mu, logvar = net["mu"](x), net["logvar"](x).clamp({bounds})'
        for bounds in ("max=20", "-30, 20")
    }
    assert found[0].verdict in ("verified", "finite")
    for kind in ("gradients", "parameters"):
        known = getattr(trace.replay(found[0]), kind)
        assert known and all(bool(tensor.isfinite().all()) for tensor in known.values())


def test_one_edit_that_mends_two_faults_is_the_cure() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 3)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.0, 1.0, 100.0]))
    x = 0.1 * torch.randn(4, 5)
    with nanlab.watch(net, on_fault="record") as trace:
        logvar = net(x)
        spread = logvar.exp()
        loss = spread.mean() + (logvar.exp() - 1 - logvar).sum(1).mean()
        loss.backward()
    assert trace.cure is not None and trace.cure.replay is not None
    assert [edit.text for edit in trace.cure.edits] == ["logvar = net(x).clamp(max=20)"]
    assert all(bool(g.isfinite().all()) for g in trace.cure.replay.gradients.values())


class Variational(torch.nn.Module):
    """An autoencoder; an update has thrown its variance to where exp overflows, in two lines."""

    def __init__(self) -> None:
        super().__init__()
        self.mu, self.logvar = torch.nn.Linear(6, 2), torch.nn.Linear(6, 2)
        self.dec = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Sigmoid())
        with torch.no_grad():
            self.logvar.bias.copy_(torch.tensor([250.0, -250.0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mu, logvar = self.mu(x), self.logvar(x)
        std = torch.exp(logvar)
        return self.dec(mu + std * torch.randn_like(std)), mu, logvar


@pytest.mark.examples(every=0)
def test_a_largest_exponent_is_not_taken_out_of_what_nothing_divides_by() -> None:
    torch.manual_seed(0)
    net, x = Variational(), torch.rand(4, 6)
    with nanlab.watch(net, on_fault="record") as trace:
        recon, mu, logvar = net(x)
        rec = -(x * torch.log(recon) + (1 - x) * torch.log(1 - recon)).sum()
        loss = rec - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss.backward()
    # the exact loss is 2e109, which float32 does not hold: bounded is all that it can be
    assert trace.cure is not None and trace.cure.verdict == "finite"
    assert re.fullmatch(r"the loss is \S+, its limit \S+e\+109", trace.cure.why)
    assert "logvar(x).clamp" in trace.cure.code and "logsigmoid" in trace.cure.code
    assert "amax" not in trace.cure.code


def test_a_call_is_wrapped_only_where_it_gives_the_tensor_that_is_read() -> None:
    class Answer:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    namespace: dict[str, Any] = {"Answer": Answer}
    library = "def head(layer, x):\n    return Answer(layer(x))\n"
    exec(compile(library, "/lib/site-packages/answers.py", "exec"), namespace)
    head, layer = namespace["head"], torch.nn.Linear(3, 3)
    with torch.no_grad():
        layer.bias.fill_(100.0)
    with nanlab.watch(layer, on_fault="record") as trace:
        answer = head(layer, torch.zeros(4, 3))
        answer.logits.exp().sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "exp-overflow"
    found = [fix for fix in trace.culprit.fixes if "head(" in fix.code]
    assert found and all(fix.verdict == "untried" for fix in found)


def test_two_faults_of_one_line_are_cured_by_one_edit_of_the_line_as_it_stands() -> None:
    var = torch.nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))
    y = torch.tensor([1.0, 2.0, 3.0])
    with nanlab.watch(on_fault="record") as trace:
        loss = (torch.log(var) + y**2 / var).mean()
        loss.backward()
    assert trace.cure is not None
    assert ["safe.log" in fix.code for fix in trace.cure.fixes] == [True, True]
    (edit,) = trace.cure.edits
    assert edit.old.strip() == "loss = (torch.log(var) + y**2 / var).mean()"
    assert f"-{edit.old.rstrip()}" in trace.cure.diff()
    assert IPython.lib.pretty.pretty(trace.cure.diff()) == trace.cure.diff(), "line by line"
    told = str(trace.report())
    assert told.index("cure (") < told.index("  fix (")


class Classifier(torch.nn.Module):
    """Its probabilities are those of a Sequential that ends in a softmax, or of a layer of its own,
    or it is called from elsewhere by its part."""

    def __init__(self, bias: float = 200.0) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Softmax(dim=1))
        self.body, self.soft = self.net[0], torch.nn.Softmax(1)
        with torch.no_grad():
            self.net[0].bias.copy_(torch.tensor([0.0, 0.0, bias]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return self.soft(h)


def in_one_line(model: Classifier, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.nll_loss(torch.log(model.net(x)), y)


def by_a_name(model: Classifier, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p = model.net(x)
    wrong = (p.argmax(1) != y).sum()
    return -(torch.log(p) * torch.nn.functional.one_hot(y, 3)).sum(1).mean() + 0 * wrong


def one_of_two(model: Classifier, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p, n = model.net(x), model.body(x).numel()
    return -(torch.log(p) * torch.nn.functional.one_hot(y, 3)).sum() / len(x) + 0 * n


def from_elsewhere(model: Classifier, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.nll_loss(torch.log(model(x)), y)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (in_one_line, "torch.log_softmax(model.net[:-1](x), 1)"),
        (by_a_name, "p_logits = model.net[:-1](x)\np = torch.softmax(p_logits, 1)\n"),
        (one_of_two, "p, n = torch.softmax(p_logits, 1), model.body(x).numel()\n"),
        (
            from_elsewhere,
            "return h\nreturn torch.nn.functional.nll_loss(torch.log_softmax(model(x)",
        ),
    ],
)
def test_a_logarithm_of_what_a_layer_ends_in_is_taken_of_what_that_layer_was_given(
    step: Any, code: str
) -> None:
    torch.manual_seed(0)
    model, x, y = Classifier(), 0.1 * torch.randn(4, 5), torch.tensor([0, 1, 2, 2])
    with nanlab.watch(model, on_fault="record") as trace:
        step(model, x, y).backward()
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    best = trace.culprit.fixes[0]
    assert best.verified and code in best.code
    right = Classifier()
    right.load_state_dict(model.state_dict())
    loss = torch.nn.functional.cross_entropy(right.body(x), y)
    loss.backward()
    replay = trace.replay(best)
    assert replay.loss == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in right.named_parameters():
        torch.testing.assert_close(replay.gradients[name], parameter.grad)


def test_a_module_that_computes_between_its_layers_is_not_called_without_the_last_one() -> None:
    class Scaled(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x) * 2)

    net = Scaled(torch.nn.Linear(5, 3), torch.nn.Softmax(1))
    with torch.no_grad():
        net[0].bias.copy_(torch.tensor([0.0, 0.0, 200.0]))
    with nanlab.watch(net, on_fault="record") as trace:
        torch.nn.functional.nll_loss(
            torch.log(net(torch.zeros(4, 5))), torch.tensor([0, 1, 2, 2])
        ).backward()
    assert trace.culprit is not None
    assert not any("[:-1]" in fix.code for fix in trace.culprit.fixes)


class Autoencoder(torch.nn.Module):
    """Draws its noise in the step, and hands on what a sigmoid gives among others."""

    def __init__(self) -> None:
        super().__init__()
        self.mu, self.logvar = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
        self.decoder = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Sigmoid())
        with torch.no_grad():
            self.decoder[0].bias.fill_(-120.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mu, logvar = self.mu(x), self.logvar(x)
        std = (0.5 * logvar).exp()
        z = mu + torch.randn_like(std) * std
        return self.decoder(z), mu, logvar


def test_noise_that_is_drawn_like_a_tensor_with_gradients_is_the_same_for_the_truth() -> None:
    torch.manual_seed(0)
    model, x = Autoencoder(), torch.rand(4, 5)
    with nanlab.watch(model, on_fault="record") as trace:
        recon, mu, logvar = model(x)
        loss = -(x * torch.log(recon) + (1 - x) * torch.log(1 - recon)).sum()
        loss = loss + 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum()
        loss.backward()
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    best = trace.culprit.fixes[0]
    assert best.verified, best.why
    assert "return self.decoder[:-1](z), mu, logvar" in best.code
    assert "x * torch.nn.functional.logsigmoid(recon)" in best.code


def test_a_bias_that_cancels_out_is_right_where_no_other_gradient_has_a_limit() -> None:
    torch.manual_seed(1)
    model, x, y = torch.nn.Linear(8, 4), torch.randn(16, 8), torch.randint(4, (16,))
    with nanlab.watch(model, on_fault="record") as trace:
        z = model(x)
        d = torch.sqrt((z[:, None] - z[None]).square().sum(-1))
        same = (y[None] == y[:, None]).float()
        loss = (d * same).sum() / same.sum() - (d * (1 - same)).mean()
        loss.backward()
    assert trace.culprit is not None and trace.culprit.cause == "sqrt-at-zero"
    assert trace.culprit.fixes[0].verified


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_derivative_that_cancels_out_as_a_whole_is_no_change_of_healthy_values(
    seed: int,
) -> None:
    torch.manual_seed(seed)
    model, x, y = torch.nn.Linear(8, 4), torch.randn(16, 8), torch.randint(4, (16,))
    x[2] = 0  # a row of its biases, all alike
    with torch.no_grad():
        model.bias.fill_(0.25)
    with nanlab.watch(model, on_fault="record") as trace:
        h = model(x)
        mean, var = h.mean(-1, keepdim=True), h.var(-1, keepdim=True)
        z = (h - mean) / torch.sqrt(var)
        torch.nn.functional.cross_entropy(z, y).backward()
    assert trace.culprit is not None and trace.culprit.cause == "std-of-constant"
    assert trace.culprit.fixes[0].verified
    assert "torch.sqrt(var + 1e-" in trace.culprit.fixes[0].code


def test_what_lines_of_another_step_read_as_it_is_keeps_its_last_layer() -> None:
    torch.manual_seed(0)
    critic = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Sigmoid())

    def judged(x: torch.Tensor) -> torch.Tensor:
        return critic(x)

    def generator_loss(p: torch.Tensor) -> torch.Tensor:
        return -torch.log(p).mean()

    x = torch.randn(4, 5)
    with nanlab.watch(critic, on_fault="record") as trace:
        torch.nn.functional.binary_cross_entropy(judged(x), torch.ones(4, 1)).backward()
        with torch.no_grad():
            critic[0].bias.fill_(-200.0)
        critic.zero_grad()
        generator_loss(judged(x)).backward()
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    assert not any("[:-1]" in fix.code for fix in trace.culprit.fixes)


class Critic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Sigmoid())
        with torch.no_grad():
            self.net[0].weight.mul_(300.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).squeeze(1)


def by_names(critic: Critic, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    real = critic(x)
    fake = critic(z)
    return -torch.mean(torch.log(real) + torch.log(1 - fake))


def in_place(critic: Critic, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return -torch.mean(torch.log(critic(x)) + torch.log(1 - critic(z)))


@pytest.mark.parametrize("loss_of", [by_names, in_place])
def test_all_calls_of_one_module_lose_their_last_layer_together(loss_of: Any) -> None:
    torch.manual_seed(0)
    critic, x, z = Critic(), torch.randn(8, 5), torch.randn(8, 5)
    with nanlab.watch(critic, on_fault="record") as trace:
        loss_of(critic, x, z).backward()
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    best = trace.culprit.fixes[0]
    assert best.verified and best.code.startswith("return self.net[:-1](x).squeeze(1)\n")
    logits = critic.net[0](x), critic.net[0](z)
    sure = torch.nn.functional.logsigmoid
    right = -(sure(logits[0]) + sure(-logits[1])).mean()
    assert trace.replay(best).loss == pytest.approx(right.item(), rel=1e-5)


class Regression(torch.nn.Module):
    """Its variance is what a relu leaves: 0 for half of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.var = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        with torch.no_grad():
            self.var.bias.fill_(0.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean(x), torch.relu(self.var(x))


def test_a_variance_of_zero_is_bounded_where_it_is_made_and_no_fix_brings_in_a_fault() -> None:
    torch.manual_seed(0)
    net, x = Regression(), torch.randn(16, 3)
    with nanlab.watch(net, on_fault="record") as trace:
        mean, var = net(x)
        loss = (0.5 * torch.log(var) + (x[:, :1] - mean) ** 2 / (2 * var)).mean()
        loss.backward()
    assert trace.cure is not None and trace.cure.verified
    assert trace.cure.code == "return self.mean(x), self.var(x).relu().clamp_min(1e-3)"
    assert trace.cure.replay is not None and trace.cure.replay.loss > 0  # it tends to infinity
    assert {f.cause for f in trace.findings} == {"log-of-zero", "div-by-zero"}


def lost(bias: float, steps: int = 8) -> Trace:
    """A generator's gradient that 1 - sigmoid takes away, in every step."""
    generator = torch.nn.Linear(3, 1)
    with torch.no_grad():
        generator.bias.fill_(bias)
    optimizer = torch.optim.SGD(generator.parameters(), lr=1e-9)
    noise = torch.zeros(8, 3)
    with nanlab.watch(generator, on_fault="record") as trace:
        for _ in range(steps):
            optimizer.zero_grad()
            score = generator(noise)
            gate = 1 - torch.sigmoid(score)
            (gate * 1e30).sum().backward()
            optimizer.step()
    return trace


def test_a_signal_that_is_lost_in_every_step_is_mended_in_the_last_that_is_kept() -> None:
    trace = lost(30.0)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == ("dead-gradient", 0)
    best = trace.culprit.fixes[0]
    assert best.verified
    assert trace.cure is not None
    assert trace.cure.fixes == [best]
    assert bool(trace.replay(best).gradients["bias"].any())


def test_a_right_gradient_that_is_still_zero_revives_nothing() -> None:
    trace = lost(250.0)
    assert trace.culprit is not None
    assert trace.culprit.cause == "dead-gradient"
    assert not any(fix.verified for fix in trace.culprit.fixes)
    assert trace.cure is None or trace.cure.verdict != "verified"


def test_of_fixes_alike_the_one_at_the_line_of_the_fault_comes_first() -> None:
    poles, signal = torch.nn.Parameter(-torch.arange(4.0)), torch.rand(2, 4)
    with nanlab.watch(on_fault="record") as trace:
        decay = torch.exp(poles * 0.1)
        gain = (decay - 1) / poles
        state = torch.zeros(2, 4)
        for k in range(3):
            state = decay * state + gain * signal[:, k : k + 1]
        (state - 1).square().mean().backward()
    assert trace.culprit is not None
    alike = [fix for fix in trace.culprit.fixes if fix.title.startswith("nanlab.safe.removable")]
    assert len(alike) > 1
    assert all(fix.verified for fix in alike)
    assert alike[0].edits[0].first == trace.culprit.line
    assert sorted(alike[1:], key=lambda fix: len(fix.code)) == alike[1:]


class Encoder(torch.nn.Module):
    """One layer gives mean and log-variance; functions of their own exponentiate it."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = torch.nn.Linear(6, 4), torch.nn.Linear(2, 6)
        with torch.no_grad():
            self.enc.bias[2] = 300.0

    def sample(self, mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
        std = torch.exp(0.5 * logvar)
        return mu + std * torch.randn_like(std)

    def divergence(self, mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
        return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), 1).mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mu, logvar = self.enc(x).chunk(2, -1)
        z = self.sample(mu, logvar)
        return (self.dec(z) - x).square().mean() + self.divergence(mu, logvar)


def test_a_name_that_functions_are_given_is_bounded_once_where_it_is_taken_apart() -> None:
    torch.manual_seed(0)
    net = Encoder()
    with nanlab.watch(net, on_fault="record") as trace:
        net(torch.rand(4, 6)).backward()
    assert trace.cure is not None and trace.cure.replay is not None
    (edit,) = trace.cure.edits
    assert edit.text.splitlines() == [
        "mu, logvar = self.enc(x).chunk(2, -1)",
        "logvar = logvar.clamp(max=20)",
    ]
    assert all(bool(g.isfinite().all()) for g in trace.cure.replay.gradients.values())


OF_ONE = {
    "a norm": "torch.zeros(4, 3) * w.sum(), h / h.norm(dim=1, keepdim=True)",
    "a variance": "torch.arange(3.0) * w.sum(), h / h[:1].var(0)",
}


@pytest.mark.parametrize("what", OF_ONE)
@pytest.mark.filterwarnings("ignore:var")
def test_one_origin_is_one_fault_whatever_is_written_in_its_place(
    what: str, tmp_path: Path
) -> None:
    made, used = OF_ONE[what].split(", h")
    text = (
        "import torch\nw = torch.nn.Parameter(torch.ones(3))\n"
        f"h = {made}\nloss = (h{used}).pow(2).mean()\nloss.backward()\n"
    )
    file = tmp_path / "program.py"
    file.write_text(text)
    with nanlab.watch(on_fault="record") as trace:
        exec(compile(text, str(file), "exec"), {})
    assert len([f for f in trace.findings if f.severity == "error"]) == 1, trace.findings


@pytest.mark.parametrize("quotient", ["{}.sum() / w.sum()", "torch.div({}.sum(), w.sum())"])
def test_of_fixes_that_were_not_tried_the_first_does_something_about_the_operation(
    quotient: str,
) -> None:
    line = quotient.format("(w * -torch.log(p[:, 1]))")
    rewritten = quotient.format("(w * -torch.log_softmax(x, 1)[:, 1])")
    said = ["the logarithm", "nanlab.safe.removable(lambda t: f(t), w)", "safe.div"]
    codes = [rewritten, said[1], "nanlab.safe.div((w * -torch.log(p[:, 1])).sum(), w.sum())"]
    fixes = [
        Fix(title, code, edits=(Edit("p.py", 1, 1, code),))
        for title, code in zip(said, codes, strict=True)
    ]
    tried = Fix("tried", "y = x", "fails", edits=(Edit("p.py", 1, 1, "y = x"),))
    end = len("loss = " + line)
    found = likeliest_first([fixes[0], tried, *fixes[1:]], f"loss = {line}\n", (1, 7, 1, end))
    assert found == [fixes[2], tried, fixes[1], fixes[0]]


def test_what_is_printed_of_a_fix_says_that_it_was_not_tried() -> None:
    fix = Fix("count at least one", "n = f(x)\ny = x / n", why="it needs others")
    assert (fix.head, fix.lines) == ("fix (untried: it needs others)", ["n = f(x)", "y = x / n"])
    new = Edit("p.py", 1, 1, "import torch\nimport nanlab", "import torch")
    assert Fix("safe", "y = nanlab.f(x)", "verified", edits=(new,)).lines == [
        "import nanlab",
        "y = nanlab.f(x)",
    ]


def test_no_trial_warns_of_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(3, 1)
    with nanlab.watch(model, on_fault="record") as trace:
        x = torch.randn(5, 3)
        p = model(x)
        inner = ((p - p.detach()).abs() ** 1.5).mean()
        found = torch.autograd.grad(inner, [*model.parameters()], create_graph=True)
        sum(g.square().sum() for g in found).backward()  # type: ignore[union-attr]
    # warns where it is loaded
    monkeypatch.delitem(sys.modules, "torch._decomp.decompositions_for_jvp", raising=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert trace.culprit is not None and trace.culprit.fixes
        assert trace.cure is None or trace.cure.edits
        assert trace.replay(trace.culprit.fixes[0]).ops is not None
    assert not told


@pytest.mark.parametrize(
    ("codes", "own"),
    [
        (["y = a.abs().clamp_min(1e-3)", "y = (a.abs() + 1e-3)"], ["clamp_min(1e-3)", "+ 1e-3"]),
        (["y = f(x - x.amax(0))", "y = f(x - x.amax(-1))"], ["amax(0)", "amax(-1)"]),
        (["y = a.exp()", "y = a.exp()"], ["", ""]),
        (["y = x + b()", "y = b() + b()"], ["x + b()", "b() + b()"]),
        (["y = x * b()", "y = b() * b()"], ["", ""]),
    ],
)
def test_fixes_of_one_title_are_told_apart(codes: list[str], own: list[str]) -> None:
    fixes = [Fix("keep it", code, edits=(Edit("p.py", 3, 3, code),)) for code in codes]
    titles = [f"keep it: `{each}`" if each else "keep it" for each in own]
    assert [fix.title for fix in told_apart([*fixes, Fix("other", "x")])] == [*titles, "other"]
    there = [
        Fix("keep it", code, edits=(Edit("p.py", n, n, code),)) for n, code in enumerate(codes, 3)
    ]
    if any(own):
        assert [fix.title for fix in told_apart(there)] == ["keep it: line 3", "keep it: line 4"]


def test_a_fix_that_does_the_same_in_more_places_says_so() -> None:
    old = "y = a.log() + b.log()"
    codes = ["y = safe.log(a) + b.log()", "y = safe.log(a) + safe.log(b)"]
    fixes = [Fix("keep it", code, edits=(Edit("p.py", 3, 3, code, old),)) for code in codes]
    assert [fix.title for fix in told_apart(fixes)] == ["keep it", "keep it, in more places"]


def test_fixes_beside_another_of_their_title_are_told_apart_by_their_places_too() -> None:
    old = "y = x.exp() / x.exp().sum()"
    codes = [
        "y = x.exp().clamp_min(1e-3) / x.exp().sum()",
        "y = x.exp().clamp_min(1e-3) / x.exp().clamp_min(1e-3).sum()",
        "y = (x.exp() + 1e-3) / (x.exp() + 1e-3).sum()",
    ]
    fixes = [Fix("keep it", code, edits=(Edit("p.py", 3, 3, code, old),)) for code in codes]
    titles = [fix.title for fix in told_apart(fixes)]
    assert titles == ["keep it", "keep it, in more places", "keep it: `+ 1e-3`"]


class Squares(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor: return (x * x).float()  # fmt: skip


def test_autocast_is_left_in_the_body_of_a_method_of_one_line() -> None:
    torch.manual_seed(0)
    layer, square = torch.nn.Linear(6, 8), Squares()
    with nanlab.watch(layer, on_fault="record") as trace:
        with torch.autocast("cpu", dtype=torch.float16):
            out = square(layer(3000 * torch.randn(5, 6)))
        (out * 1e-8).mean().backward()
    assert trace.culprit is not None and trace.culprit.cause == "dtype-overflow"
    wide = [fix for fix in trace.culprit.fixes if "autocast" in fix.code]
    assert wide and all(fix.verdict in ("verified", "finite") for fix in wide)
    for fix in wide:
        head, context, body = fix.code.splitlines()
        assert head.startswith("def forward(") and body.lstrip().startswith("return")
        assert context == '    with torch.autocast("cpu", enabled=False):'


def test_another_operation_with_the_same_number_is_not_what_failed() -> None:
    text = "d = a.pow(-0.5) if s else b.pow(-0.5)\n"
    codes = [
        text.strip().replace("a.pow(", "safe(a, "),
        "d = safe(a, -0.5) if s else safe(b, -0.5)",
    ]
    fixes = [Fix("safe", code, edits=(Edit("p.py", 1, 1, code),)) for code in codes]
    assert likeliest_first(fixes, text, (1, 4, 1, 15)) == fixes


def pooled(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x**p).mean(dim=(-2, -1)) ** (1.0 / p)


def rooted(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (p * x).sum(-1).sqrt() / p


@pytest.mark.parametrize("function", [pooled, rooted])
def test_what_runs_its_expression_many_times_is_tried_after_the_bounds(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., torch.Tensor]
) -> None:
    tried = counted(monkeypatch, remedies, "_judged")
    p, x = torch.full((1,), 3.0, requires_grad=True), torch.rand(2, 3, 3)
    x[1] = 0
    with nanlab.watch(on_fault="record") as trace:
        function(p, x.requires_grad_()).sum().backward()
    assert trace.culprit is not None and [*trace.culprit.fixes]
    titles = [fix.title for _, _, fix, _ in tried if not fix.title.startswith("the exact value")]
    bounds = [at for at, title in enumerate(titles) if title.startswith(("clamp", "nanlab.safe."))]
    slow = [at for at, title in enumerate(titles) if title.startswith(remedies.REMOVABLE)]
    assert bounds and (not slow or min(bounds) < min(slow))


def test_a_fix_that_is_a_right_cure_says_so_where_no_work_was_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remedies, "WORK", 0)
    trace = faulty()
    assert trace.culprit is not None
    assert {fix.verdict for fix in trace.culprit.fixes if fix.edits} == {"untried"}
    assert trace.cure is not None and trace.cure.verified and len(trace.cure.fixes) == 1
    first = trace.culprit.fixes[0]
    assert first.verified and first.edits == trace.cure.edits and not first.why


def test_number_from_which_a_tensor_is_made_is_no_tensor_in_a_mask() -> None:
    w = torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))

    def loss() -> torch.Tensor:
        total: torch.Tensor = torch.zeros(())
        for order in range(3):
            n = torch.tensor(float(order))
            total = total + (w[order] ** order) / (n * (n + 1)) * order
        return total

    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            w.grad = None
            loss().backward()
    assert trace.culprit is not None and trace.culprit.cause == "div-by-zero"
    verified = [fix for fix in trace.culprit.fixes if fix.verified]
    assert verified and all("torch.where(order" not in fix.code for fix in verified)
