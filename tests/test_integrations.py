"""The callbacks for transformers and Lightning: the training ends before a bad gradient reaches the
weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture import FaultFound

HOOKS = sys.modules["torch.optim.optimizer"]


pytestmark = pytest.mark.usefixtures("untried")


def line_of(mark: str) -> int:
    return next(
        i
        for i, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line.endswith(f"# {mark}")
    )


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random rows; the scale of one of them is 0."""

    def __init__(self, bad: int) -> None:
        self.x = torch.randn(160, 8, generator=torch.Generator().manual_seed(1))
        self.bad = bad

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "scale": torch.tensor(0.0 if i == self.bad else 1.0)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 4)
        self.checkpoints = False

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        self.checkpoints = True

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.checkpoints:
            h = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        else:
            h = self.inner(x)
        out = self.head(h) * scale[:, None]
        return {"loss": out.float().pow(2).sum(1).sqrt().mean()}  # NET


def check(trace: nanlab.Trace | None, model: nn.Module, mode: str, step: int, mark: str) -> None:
    assert trace is not None and trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.line, trace.culprit.step) == (
        "sqrt-at-zero",
        line_of(mark),
        step,
    )
    if mode == "guard":
        assert trace.guarded is not None and (trace.guarded.step, trace.guarded.identical) == (
            step,
            True,
        )
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert not HOOKS._global_optimizer_pre_hooks


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("mode", ["guard", "watch"])
@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({}, 13),
        ({"bf16": True}, 13),
        ({"gradient_accumulation_steps": 4}, 3),
        ({"bf16": True, "gradient_accumulation_steps": 4}, 3),
        ({"gradient_checkpointing": True}, 13),
        ({"lora": True}, 13),
    ],
    ids=["fp32", "bf16", "accumulated", "bf16-accumulated", "checkpointed", "lora"],
)
def test_a_trainer_of_transformers_ends_before_the_weights_are_bad(
    tmp_path: Path, mode: Any, options: dict[str, Any], step: int
) -> None:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    from transformers import Trainer, TrainingArguments

    from nanlab.integrations.transformers import NanlabCallback

    torch.manual_seed(0)
    model: nn.Module = Net()
    options = dict(options)
    if options.pop("lora", False):
        peft = pytest.importorskip("peft", reason="low-rank adapters need peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["inner.0"]))
    callback = NanlabCallback(mode=mode, save=tmp_path / "out")
    arguments = TrainingArguments(
        str(tmp_path / "runs"),
        per_device_train_batch_size=4,
        max_steps=20 if step > 3 else 5,
        report_to=[],
        save_steps=4 if step > 3 else 2,
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        seed=0,
        **options,
    )
    order = torch.randperm(160, generator=torch.Generator().manual_seed(0)).tolist()

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return order

    trainer = InOrder(
        model=model, args=arguments, train_dataset=Rows(order[54]), callbacks=[callback]
    )
    trainer.train()
    check(callback.trace, model, mode, step, "NET")
    assert "training_step" not in vars(trainer)
    saved = {
        int(p.name.removeprefix("checkpoint-")) for p in (tmp_path / "runs").glob("checkpoint-*")
    }
    assert saved == set(range(arguments.save_steps, step + 1, int(arguments.save_steps)))
    assert (tmp_path / "out" / "nanlab.html").exists()
    if mode == "guard" and not options:
        program = "import nanlab, sys; t = nanlab.load(sys.argv[1]); print(t.replay().identical)"
        again = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "out" / "nanlab.nanlab")],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(nanlab.__file__).parents[1])},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert again.stdout == "True\n", again.stderr


def lightning_module(kind: str) -> Any:
    lightning = pytest.importorskip("lightning", reason="the callback for Lightning needs it")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.critic = Net(), nn.Linear(4, 1)
            self.automatic_optimization = kind != "adversarial"

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> Any:
            if self.automatic_optimization:
                loss = self.net(**batch)["loss"]
                self.log("loss", loss, on_epoch=True)
                return loss
            for_net, for_critic = self.optimizers()
            for_critic.zero_grad()
            fake = self.net.head(self.net.inner(batch["x"]))
            self.manual_backward(self.critic(fake.detach()).square().mean())
            for_critic.step()
            for_net.zero_grad()
            rows = fake * batch["scale"][:, None]
            loss = rows.pow(2).sum(1).sqrt().mean() + self.critic(rows).mean()  # GAN
            self.manual_backward(loss)
            for_net.step()
            return None

        def configure_optimizers(self) -> Any:
            if kind == "lbfgs":
                return torch.optim.LBFGS(self.net.parameters(), lr=0.01, max_iter=3)
            if kind == "adversarial":
                return [
                    torch.optim.Adam(self.net.parameters()),
                    torch.optim.Adam(self.critic.parameters()),
                ], []
            return torch.optim.Adam(self.net.parameters())

    torch.manual_seed(0)
    return Module()


LIGHTNING = {
    "plain": ({}, 13),
    "accumulated": ({"accumulate_grad_batches": 4}, 3),
    "bf16-mixed": ({"precision": "bf16-mixed"}, 13),
    "clipped": ({"gradient_clip_val": 1.0}, 13),
    "adversarial": ({}, 13),
    "lbfgs": ({}, 13),
}


@pytest.mark.examples(every=3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["guard", "watch", "plain watch"])
@pytest.mark.parametrize("kind", LIGHTNING)
def test_a_trainer_of_lightning_ends_before_the_weights_are_bad(
    tmp_path: Path, mode: Any, kind: str
) -> None:
    module = lightning_module(kind)
    import lightning

    from nanlab.integrations.lightning import NanlabCallback

    options, step = LIGHTNING[kind]
    callback = NanlabCallback(
        mode="watch" if mode == "plain watch" else mode, save=tmp_path / "out"
    )
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[] if mode == "plain watch" else [callback],
        **options,
    )
    loader = torch.utils.data.DataLoader(Rows(54), batch_size=4)
    if mode == "plain watch":
        with nanlab.watch(module) as trace:
            trainer.fit(module, loader)
    else:
        trainer.fit(module, loader)
        trace = callback.trace
        assert (tmp_path / "out" / "nanlab.txt").exists()
        assert trainer.state.finished
    check(trace, module, mode, step, "GAN" if kind == "adversarial" else "NET")


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_the_module_of_lightning_refuses_itself_is_told(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="the callback for Lightning needs it")
    from nanlab.integrations.lightning import NanlabCallback

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 4)

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            loss = (self.net(batch["x"]).abs() * batch["scale"][:, None]).log().mean()  # REFUSED
            if not torch.isfinite(loss):
                raise ValueError("the loss is not finite")
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    callback, module = NanlabCallback(save=tmp_path / "out"), Module()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    with pytest.raises(ValueError, match="the loss is not finite"):
        trainer.fit(module, torch.utils.data.DataLoader(Rows(54), batch_size=4))
    trace = callback.trace
    assert trace is not None and trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.line) == ("log-of-zero", line_of("REFUSED"))
    assert str(trace.guarded) == "step 13 of the run was replayed, bit for bit"
    assert (tmp_path / "out" / "nanlab.txt").exists()


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("batches", [1, 4])
def test_a_loop_of_accelerate_is_guarded(precision: str, batches: int) -> None:
    accelerate = pytest.importorskip("accelerate", reason="its loop is guarded here")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=batches
    )
    torch.manual_seed(0)
    plain = Net()
    model, opt, loader = accelerator.prepare(
        plain,
        torch.optim.AdamW(plain.parameters()),
        torch.utils.data.DataLoader(Rows(54), batch_size=4),  # 54 is in batch 13
    )

    def train() -> None:
        for batch in nanlab.guard(loader, model, opt):
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()

    with pytest.raises(FaultFound):
        train()
    check(nanlab.last, plain, "guard", 13 // batches, "NET")


@pytest.mark.parametrize("package", ["transformers", "lightning"])
def test_a_wrong_mode_is_refused(package: str) -> None:
    pytest.importorskip(package)
    import importlib

    callback = importlib.import_module(f"nanlab.integrations.{package}").NanlabCallback
    with pytest.raises(nanlab.NanlabError, match='"guard" or "watch"'):
        callback(mode="look")


@pytest.mark.parametrize("package", ["transformers", "lightning"])
def test_a_folder_that_is_no_path_is_refused(package: str) -> None:
    pytest.importorskip(package)
    import importlib

    callback = importlib.import_module(f"nanlab.integrations.{package}").NanlabCallback
    with pytest.raises(nanlab.NanlabError, match="expected a path"):
        callback(save=3)
