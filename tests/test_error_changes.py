"""The line to change for an exception: named, rewritten in the program's own words, and the program
then runs."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import nanlab

PROGRAMS = {
    "reflection longer than its dimension": """
        x = torch.arange(3.0).reshape(1, 1, 3)
        y = F.pad(x, (4, 4), mode="reflect")  # change
    """,
    "no_grad": """
        net = nn.Linear(3, 1)
        with torch.no_grad():  # change
            out = net(torch.randn(4, 3))
        out.mean().backward()
    """,
    "frozen": """
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        for p in net.parameters():
            p.requires_grad_(False)  # change
        net(torch.randn(2, 3)).mean().backward()
    """,
    "width": """
        net = nn.Sequential(nn.Flatten(), nn.Linear(128, 10))  # change
        net(torch.randn(2, 4, 16))
    """,
    "double": """
        net = nn.Linear(3, 1)
        x = torch.rand(4, 3, dtype=torch.float64)  # change
        net(x)  # change
    """,
    "target": """
        net = nn.Linear(3, 4)
        labels = torch.tensor([0.0, 1.0, 2.0])  # change
        F.cross_entropy(net(torch.randn(3, 3)), labels)  # change
    """,
    "tokens": """
        table = nn.Embedding(10, 4)  # change
        ids = torch.tensor([1, 12])
        table(ids)
    """,
    "classes": """
        head = nn.Linear(4, 3)  # change
        F.cross_entropy(head(torch.randn(2, 4)), torch.tensor([0, 3]))
    """,
    "several": """
        net = nn.Linear(3, 2)
        loss = F.mse_loss(net(torch.randn(4, 3)), torch.zeros(4, 2), reduction="none")  # change
        loss.backward()
    """,
    "numpy": """
        net = nn.Linear(2, 1)
        net(torch.ones(1, 2)).numpy()  # change
    """,
    "two_losses": """
        net = nn.Linear(3, 2)
        out = net(torch.randn(4, 3)).exp()
        loss_x = out.mean()
        loss_y = out.square().mean()
        loss_x.backward()  # change
        loss_y.backward()
    """,
    "same_loss_twice": """
        net = nn.Linear(3, 2)
        loss = net(torch.randn(4, 3)).tanh().sum()
        loss.backward()  # change
        loss.backward()
    """,
    "carried_state": """
        cell = nn.GRUCell(3, 4)
        state = torch.zeros(2, 4)
        for i in range(3):
            state = cell(torch.randn(2, 3), state)  # change
            loss = state.square().mean()
            loss.backward()
    """,
    "carried_sum": """
        net = nn.Linear(3, 1)
        total = torch.zeros(())
        for i in range(3):
            out = net(torch.randn(4, 3)).exp().mean()
            total = 0.9 * total + out  # change
            total.backward()
    """,
    "computed once for the rounds of one step": """
        body, head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 1)
        opt = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
        for step in range(2):
            shared = body(torch.randn(4, 3))
            opt.zero_grad()
            for other in torch.randn(3, 4, 3):
                loss = (shared * body(other)).sum(1).exp().mean()
                loss.backward()  # change
            opt.step()
    """,
    "an encoder for several heads": """
        body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
        opt = torch.optim.SGD([*body.parameters(), *heads.parameters()], 0.1)
        features = body(torch.randn(4, 3))
        for head in heads:
            (head(features).square().mean() / 3).backward()  # change
        opt.step()
    """,
    "computed once before several steps": """
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        opt = torch.optim.SGD(net.parameters(), 0.1)
        before = net(torch.ones(2, 3))
        for _ in range(3):
            opt.zero_grad()
            (net(torch.ones(2, 3)) - before).exp().mean().backward()  # change
            opt.step()
    """,
    "penalty": """
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        gan = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        fake = gan(torch.randn(5, 2))
        critic = net(fake).mean()  # change
        critic.backward()  # change
        (-net(fake).mean()).backward()
    """,
    "in_place": """
        net = nn.Linear(3, 4)
        h = torch.sigmoid(net(torch.randn(2, 3)))
        h *= 2  # change
        h.sum().backward()
    """,
    "in_place_relu": """
        net = nn.Linear(3, 4)
        h = net(torch.randn(2, 3)).exp()
        h.add_(1)  # change
        h.sum().backward()
    """,
    "leaf_in_place": """
        w = torch.ones(3, requires_grad=True)
        w -= 0.1  # change
        w.sum().backward()
    """,
    "view": """
        x = torch.randn(2, 3, 4)
        y = x.transpose(1, 2)
        z = y.view(2, 12)  # change
    """,
    "not_graph": """
        net = nn.Linear(3, 1)
        out = net(torch.randn(4, 3))
        pred = torch.as_tensor(out.tolist())  # change
        pred.mean().backward()
    """,
    "item": """
        net = nn.Linear(3, 1)
        loss = torch.tensor(net(torch.randn(4, 3)).mean().item())  # change
        loss.backward()
    """,
    "detached": """
        net = nn.Linear(3, 1)
        out = net(torch.randn(4, 3)).detach()  # change
        out.mean().backward()
    """,
    "probabilities": """
        net = nn.Linear(3, 1)
        y = torch.tensor([[0.0], [1.0]])
        loss = F.binary_cross_entropy(net(torch.randn(2, 3)) * 9, y)  # change
    """,
    "unused": """
        a = torch.ones(2, requires_grad=True)
        b = torch.ones(2, requires_grad=True)
        g = torch.autograd.grad((a * 2).sum(), [a, b])  # change
    """,
    "deepcopy": """
        import copy
        net = nn.Linear(3, 1)
        out = net(torch.randn(2, 3))
        kept = copy.deepcopy(out)  # change
    """,
    "channels": """
        net = nn.Conv2d(1, 4, 3)  # change
        net(torch.randn(2, 3, 8, 8))
    """,
    "reshape": """
        x = torch.randn(2, 3, 4)
        y = x.view(2, 10)  # change
    """,
    "matmul": """
        a = torch.randn(2, 3)
        w = torch.randn(5, 3)
        y = a @ w  # change
    """,
    "half": """
        net = nn.Linear(3, 4).half()  # change
        x = torch.randn(2, 3)  # change
        y = net(x)  # change
    """,
    "double_numpy": """
        import numpy as np
        net = nn.Linear(3, 4)
        x = torch.from_numpy(np.ones((2, 3)))  # change
        y = net(x)  # change
    """,
    "float_index": """
        table = nn.Embedding(5, 2)
        ids = torch.tensor([1.0, 2.0])  # change
        table(ids)  # change
    """,
    "bce_long": """
        net = nn.Linear(3, 1)
        y = torch.tensor([[0], [1]])  # change
        loss = F.binary_cross_entropy_with_logits(net(torch.randn(2, 3)), y)  # change
    """,
    "one_hot_float": """
        y = torch.tensor([0.0, 1.0])  # change
        F.one_hot(y, 3)  # change
    """,
    "stack": """
        rows = [torch.zeros(3), torch.zeros(4)]
        batch = torch.stack(rows)  # change
    """,
    "cat": """
        a, b = torch.zeros(2, 3), torch.zeros(2, 4)
        c = torch.cat([a, b])  # change
    """,
    "no_grad_decorator": """
        net = nn.Linear(3, 1)
        @torch.no_grad()  # change
        def forward(x):
            return net(x)
        forward(torch.randn(2, 3)).mean().backward()
    """,
    "inference": """
        net = nn.Linear(3, 1)
        with torch.inference_mode():  # change
            h = net(torch.randn(2, 3))
        h.mean().backward()
    """,
    "lstm_width": """
        rnn = nn.LSTM(4, 8)  # change
        rnn(torch.randn(5, 2, 3))
    """,
    "layer_norm": """
        norm = nn.LayerNorm(8)  # change
        norm(torch.randn(2, 6))
    """,
    "numpy_of_list": """
        net = nn.Linear(2, 1)
        out = net(torch.ones(3, 2))
        values = out[:, 0].numpy()  # change
    """,
    "vector_loss": """
        net = nn.Linear(3, 2)
        err = (net(torch.randn(4, 3)) - 1).abs()  # change
        err.backward()
    """,
    "broadcast": """
        a, b = torch.zeros(4, 3), torch.zeros(4)
        c = a + b  # change
    """,
    "classes_conv": """
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))  # change
        F.cross_entropy(net(torch.randn(2, 4)), torch.tensor([0, 3]))
    """,
    "cholesky": """
        a = torch.ones(3, 3)
        l = torch.linalg.cholesky(a)  # change
    """,
    "negative_rate": """
        rate = torch.tensor([0.5, -1.0])
        d = torch.distributions.Exponential(rate)  # change
    """,
    "multinomial": """
        p = torch.tensor([0.0, 0.0])
        i = torch.multinomial(p, 1)  # change
    """,
    "sampled_grad": """
        net = nn.Linear(3, 2)
        d = torch.distributions.Normal(net(torch.randn(4, 3)), 1.0)
        z = d.sample()  # change
        z.square().mean().backward()
    """,
    "concat_on_wrong_axis_of_features": """
        img = torch.randn(4, 16)
        txt = torch.randn(4, 8)
        both = torch.cat([img, txt], dim=0)  # change
        nn.Linear(24, 2)(both)
    """,
    "sequence_first_attention_mask": """
        attn = nn.MultiheadAttention(8, 2, batch_first=True)
        x = torch.randn(3, 5, 8)
        mask = torch.zeros(5, 3, dtype=torch.bool)  # change
        attn(x, x, x, key_padding_mask=mask)  # change
    """,
    "mask_of_columns_on_rows": """
        scores = torch.randn(4, 6)
        keep = torch.tensor([True, False, True, True, False, False])
        top = scores[keep]  # change
    """,
    "target_column": """
        net = nn.Linear(4, 3)
        target = torch.tensor([[0], [2]])  # change
        F.cross_entropy(net(torch.randn(2, 4)), target)  # change
    """,
    "detach_at_the_end_of_truncation": """
        rnn = nn.RNN(3, 4, batch_first=True)
        opt = torch.optim.SGD(rnn.parameters(), lr=0.1)
        hidden = torch.zeros(1, 2, 4)
        for chunk in torch.randn(3, 2, 5, 3):
            opt.zero_grad()
            out, hidden = rnn(chunk, hidden)  # change
            out.pow(2).mean().backward()
            opt.step()
    """,
    "step_between_two_backwards": """
        enc, dec = nn.Linear(3, 3), nn.Linear(3, 3)
        opt = torch.optim.SGD([*enc.parameters(), *dec.parameters()], lr=0.1)
        z = enc(torch.randn(4, 3))
        first = dec(z).mean()
        second = (dec(z) ** 2).mean()
        first.backward()  # change
        second.backward()
    """,
    "bool_of_a_batch": """
        loss = torch.tensor([0.5, 1.5])
        if loss > 1.0:  # change
            print("large")
    """,
    "batch_norm_of_one": """
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))  # change
        y = net(torch.randn(1, 4))  # change
    """,
    "state_with_other_prefix": """
        src = nn.DataParallel(nn.Linear(3, 2))
        net = nn.Linear(3, 2)
        net.load_state_dict(src.state_dict())  # change
    """,
    "scatter_of_float_ids": """
        out = torch.zeros(4)
        ids = torch.tensor([0.0, 2.0])  # change
        out.scatter_add_(0, ids, torch.ones(2))  # change
    """,
    "embedding_of_padding_minus_one": """
        table = nn.Embedding(6, 3)
        ids = torch.tensor([[1, 2, -1]])  # change
        table(ids).sum().backward()  # change
    """,
    "mixed_dtype_matmul_autocast_off": """
        w = torch.randn(3, 4, dtype=torch.bfloat16)
        x = torch.randn(2, 3)  # change
        y = x @ w  # change
    """,
    "inplace_on_saved_softmax": """
        net = nn.Linear(3, 3)
        p = net(torch.randn(2, 3)).softmax(-1)
        p[p < 0.1] = 0  # change
        p.prod(-1).sum().backward()
    """,
    "mse_of_wrong_width": """
        net = nn.Linear(5, 3)  # change
        target = torch.randn(8, 2)  # change
        loss = F.mse_loss(net(torch.randn(8, 5)), target)
        loss.backward()
    """,
    "embedding_of_float_ids": """
        table = nn.Embedding(20, 4)
        tokens = torch.tensor([[1.0, 3.0, 5.0]])  # change
        table(tokens).mean().backward()  # change
    """,
    "cross_entropy_of_int32": """
        net = nn.Linear(4, 5)
        y = torch.tensor([0, 4, 2], dtype=torch.int32)  # change
        F.cross_entropy(net(torch.randn(3, 4)), y).backward()  # change
    """,
    "leaf_filled_in_place": """
        table = nn.Embedding(6, 4)
        table.weight[0] = 0.0  # change
        table(torch.tensor([1, 2])).sum().backward()
    """,
    "clamp_of_parameter": """
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(3, 4)).sum().backward()
        opt.step()
        net.weight.clamp_(-1, 1)  # change
    """,
    "backward_twice_in_a_loop": """
        net = nn.Linear(4, 2)
        x = torch.randn(6, 4)
        features = net(x).tanh()  # change
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(2):
            opt.zero_grad()
            loss = features.square().mean()
            loss.backward()
            opt.step()
    """,
    "loss_rebuilt_from_numpy": """
        net = nn.Linear(4, 1)
        out = net(torch.randn(6, 4)).squeeze(1)
        pred = torch.from_numpy(out.detach().numpy())  # change
        loss = (pred - torch.ones(6)).abs().mean()
        loss.backward()
    """,
    "argmax_in_the_loss": """
        net = nn.Linear(4, 3)
        logits = net(torch.randn(6, 4))
        picked = logits.argmax(1).float()  # change
        loss = (picked - torch.ones(6)).square().mean()
        loss.backward()
    """,
    "last_batch_of_one_in_loader": """
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.randn(9, 4), torch.zeros(9))
        loader = DataLoader(data, batch_size=4)  # change
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        for x, y in loader:
            F.mse_loss(net(x).squeeze(1), y).backward()
    """,
    "collate_of_ragged_rows": """
        from torch.utils.data import DataLoader
        rows = [torch.arange(3), torch.arange(5), torch.arange(2)]
        loader = DataLoader(rows, batch_size=3)  # change
        for batch in loader:
            batch.float().sum()
    """,
    "optimizer_of_generator_spent": """
        net = nn.Linear(4, 2)
        params = net.parameters()  # change
        count = sum(p.numel() for p in params)
        opt = torch.optim.Adam(params, lr=1e-3)  # change
    """,
    "optimizer_of_detached_copy": """
        net = nn.Linear(4, 2)
        scaled = net.weight * 0.5  # change
        opt = torch.optim.SGD([scaled], lr=0.1)
    """,
    "state_dict_of_other_width": """
        small, large = nn.Linear(4, 2), nn.Linear(8, 2)  # change
        checkpoint = small.state_dict()
        large.load_state_dict(checkpoint)  # change
    """,
    "scaler_unscaled_twice": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        loss = net(torch.randn(3, 4)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.unscale_(opt)  # change
        scaler.step(opt)
        scaler.update()
    """,
    "scaler_step_without_backward": """
        net = nn.Linear(4, 1)
        head = nn.Linear(4, 1)
        opt = torch.optim.SGD(head.parameters(), lr=0.1)  # change
        scaler = torch.amp.GradScaler("cpu")
        loss = net(torch.randn(3, 4)).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    """,
    "bce_under_autocast": """
        net = nn.Linear(4, 1)
        y = torch.zeros(3, 1)
        with torch.autocast("cpu", dtype=torch.float16):
            p = torch.sigmoid(net(torch.randn(3, 4)))
        q = p.half()
        loss = F.binary_cross_entropy(q, y)  # change
        loss.backward()
    """,
    "history_of_losses_to_numpy": """
        net = nn.Linear(4, 1)
        import numpy as np
        history = []
        for i in range(3):
            loss = net(torch.randn(3, 4)).square().mean()
            loss.backward()
            history.append(loss)
        curve = np.array([h.numpy() for h in history])  # change
    """,
    "permuted_image_flattened": """
        x = torch.randn(2, 3, 8, 8)
        last = x.permute(0, 2, 3, 1)
        flat = last.view(2, -1)  # change
    """,
    "conv_without_batch_axis_of_channels": """
        net = nn.Conv2d(3, 4, 3)
        images = torch.randn(2, 16, 16, 3)  # change
        net(images).mean().backward()  # change
    """,
    "normalised_in_place_before_backward": """
        net = nn.Linear(4, 4)
        h = net(torch.randn(3, 4))
        norm = h.norm(dim=1, keepdim=True)
        h /= norm  # change
        h.square().sum().backward()
    """,
    "gather_of_int_index": """
        logits = torch.randn(4, 5, requires_grad=True)
        actions = torch.tensor([0, 1, 2, 3])  # change
        chosen = logits.log_softmax(-1).gather(1, actions)  # change
        (-chosen.mean()).backward()
    """,
    "masked_loss_of_other_length": """
        lstm = nn.LSTM(3, 4, batch_first=True)
        out, _ = lstm(torch.randn(2, 7, 3))
        keep = torch.ones(2, 6, dtype=torch.bool)  # change
        loss = out[keep].square().mean()
        loss.backward()
    """,
    "parameter_made_of_a_result": """
        net = nn.Linear(3, 3)
        scale = torch.ones(3, requires_grad=True) * 2  # change
        opt = torch.optim.Adam([{"params": net.parameters()}, {"params": [scale]}], lr=1e-3)
    """,
    "teacher_frozen_and_student_too": """
        teacher, student = nn.Linear(3, 2), nn.Linear(3, 2)
        for model in (teacher, student):
            model.requires_grad_(False)  # change
        x = torch.randn(4, 3)
        F.mse_loss(student(x), teacher(x)).backward()
    """,
    "attention_heads_do_not_divide": """
        attn = nn.MultiheadAttention(10, 4)  # change
        x = torch.randn(5, 2, 10)
        attn(x, x, x)
    """,
    "pad_sequence_of_other_widths": """
        from torch.nn.utils.rnn import pad_sequence
        rows = [torch.randn(3, 4), torch.randn(5, 2)]  # change
        batch = pad_sequence(rows, batch_first=True)
    """,
    "weight_of_classes_too_short": """
        net = nn.Linear(4, 5)
        weight = torch.tensor([1.0, 2.0, 1.0])  # change
        F.cross_entropy(net(torch.randn(2, 4)), torch.tensor([0, 4]), weight=weight).backward()
    """,
    "scheduler_of_a_model": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        sched = torch.optim.lr_scheduler.StepLR(net, step_size=2)  # change
    """,
    "clip_after_conv_to_double": """
        net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(18, 1))
        import numpy as np
        series = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 2, 8)))  # change
        net(series).mean().backward()  # change
    """,
    "einsum_of_other_axes": """
        q, k = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
        scores = torch.einsum("bqd,bdk->bqk", q, k)  # change
    """,
}


def failed(path: Path, text: str) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        run(path / "program.py", textwrap.dedent(text).strip() + "\n")
    return caught.value


def run(path: Path, text: str) -> None:
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "__main__"}
    head = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
    exec(head, names)
    exec(compile(text, str(path), "exec"), names)


@pytest.mark.examples(every=8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_line_to_change_is_named_and_as_rewritten_lets_the_program_run(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    text = textwrap.dedent(PROGRAMS[name]).strip() + "\n"
    wanted = [i for i, line in enumerate(text.splitlines(), 1) if "# change" in line]
    with pytest.raises(Exception, match=r".") as caught, nanlab.watch(on_fault="record"):
        run(path, text)
    told = nanlab.explain(caught.value)
    assert told is not None and told.change is not None
    assert told.change[0] == str(path) and told.change[1] in wanted
    (edit,) = told.fixes[0].edits
    lines = text.splitlines()
    lines[edit.first - 1 : edit.last] = edit.rows()
    run(path, "\n".join(lines) + "\n")


def test_what_several_passes_of_a_step_share_is_not_carried_over(tmp_path: Path) -> None:
    name = "computed once for the rounds of one step"
    with nanlab.watch(on_fault="record"):
        error = failed(tmp_path, PROGRAMS[name])
    told = nanlab.explain(error)
    assert told is not None and "It is computed once, before several" in told.explanation
    assert told.fixes[0].code == "loss.backward(retain_graph=True)  # change"
    assert told.fixes[1].code.startswith("total = total + loss")
    assert "hidden" not in repr(told)


@pytest.mark.parametrize(
    ("scale", "wanted"),
    [
        ("s.relu()", "F.softplus(s)"),
        ("torch.relu(s)", "F.softplus(s)"),
        ("(0 * s).square()", "(0 * s).square() + 1e-6"),
    ],
)
def test_a_scale_that_is_never_negative_is_made_positive(
    scale: str, wanted: str, tmp_path: Path
) -> None:
    text = f"""
        def step(net, x):
            mu, s = net(x).chunk(2, 1)
            scale = {scale}
            return torch.distributions.Normal(mu, scale)
        step(nn.Linear(4, 4), torch.randn(64, 4))
    """
    told = nanlab.explain(failed(tmp_path, text))
    assert told.fixes[0].code == f"scale = {wanted}"


def test_line_that_raised_is_said_alone_where_no_other_is_known() -> None:
    with pytest.raises(RuntimeError) as caught, nanlab.watch(on_fault="record"):
        torch.stack([torch.zeros(3), torch.zeros(4)])
    told = nanlab.explain(caught.value)
    assert told is not None and told.change is None
    assert not any(fix.title.startswith("change") for fix in told.fixes)


def test_what_the_changed_line_says_is_no_fix_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    text = "import torch\nhead = torch.nn.Linear(8, 2)\nhead(torch.zeros(3, 6))\n"
    with pytest.raises(RuntimeError) as raised, nanlab.watch():
        run(path, text)
    codes = [fix.code for fix in nanlab.explain(raised.value).fixes]
    assert codes[0] == "head = torch.nn.Linear(6, 2)"
    assert not any(code in codes[0] for code in codes[1:])


def test_rows_that_are_needed_are_counted_over_all_indices(tmp_path: Path) -> None:
    text = """
table = nn.Embedding(10, 4)
tokens = torch.arange(10, 60)  # the first twenty end at 29
table(tokens)
"""
    with pytest.raises(IndexError) as raised, nanlab.watch(on_fault="record"):
        run(tmp_path / "program.py", text)
    told = nanlab.explain(raised.value)
    assert "50 of the 50 indices" in told.explanation
    assert "18, 19 and 30 more" in told.explanation
    assert told.fixes[0].code == "table = nn.Embedding(60, 4)"


@pytest.mark.parametrize(
    ("text", "name", "value", "made"),
    [
        (
            """
        def loss(out):
            return out.no_such_thing
        loss({"logits": 1})
        """,
            "out",
            "a dict with 1 keys: 'logits'",
            "an argument of loss",
        ),
        (
            """
        import json
        rows = ["'a'", 2]
        json.loads(rows[0])
        """,
            "rows",
            "a list of 2 (str, int)",
            "bound at program.py:2",
        ),
    ],
)
def test_names_that_the_line_of_an_unknown_exception_read_are_told(
    text: str, name: str, value: str, made: str, tmp_path: Path
) -> None:
    told = nanlab.explain(failed(tmp_path, text))
    assert told is not None and told.change is None and not told.fixes
    assert told.evidence.to_dict("records") == [{"name": name, "value": value, "made": made}]


def test_exception_that_the_program_raises_itself_is_not_told_anew(tmp_path: Path) -> None:
    text = "rows = []\nif not rows:\n    raise KeyError('x')\n"
    assert nanlab.explain(failed(tmp_path, text)) is None
