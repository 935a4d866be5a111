"""What an exception means: each one raised for real, under a watch and without."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nanlab
from nanlab import explanations
from nanlab.explanations import Explanation, explain
from nanlab.explanations.explanation import means

torch.set_num_threads(1)
Program = Callable[[], object]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(tokens).mean(1))


def raised(program: Program, watched: bool = True, model: nn.Module | None = None) -> Exception:
    """The exception that a program raises."""
    try:
        with warnings.catch_warnings(), nanlab.watch(model) if watched else nullcontext():
            warnings.simplefilter("ignore")
            program()
    except Exception as error:
        return error
    pytest.fail("the program raised nothing")


def explained(
    program: Program, watched: bool = True, model: nn.Module | None = None
) -> Explanation:
    found = explain(raised(program, watched, model))
    assert found is not None
    assert str(found).startswith(found.title)
    assert found._repr_html_().count("<div") == found._repr_html_().count("</div")
    return found


def line_of(program: Program, mark: str) -> int:
    """Number of the line of a program that ends with a comment ``# mark``."""
    lines, first = inspect.getsourcelines(program)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


# -- the graph was cut
# ------------------------------------------------------------


def scaler_and_model() -> tuple[torch.amp.GradScaler, Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net()
    return torch.amp.GradScaler("cpu"), model, torch.optim.SGD(model.parameters(), lr=0.1)


def list_of_logits() -> None:
    scaler, model, optimizer = scaler_and_model()
    tokens, outputs = torch.tensor([[1, 2], [3, 4]]), []
    for row in tokens:
        outputs.append(model(row[None]).sum())
    pred = torch.as_tensor(outputs)  # cut
    loss = (pred - 1).pow(2).mean().requires_grad_()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def detached() -> None:
    scaler, model, optimizer = scaler_and_model()
    out = model(torch.tensor([[1, 2]]))
    still = out.detach()  # cut
    loss = (still * torch.ones(3, requires_grad=True)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def test_no_inf_checks_names_the_list_that_cut_the_graph() -> None:
    found = explained(list_of_logits)
    assert (found.cause, found.line) == ("graph-cut", line_of(list_of_logits, "cut"))
    assert "torch.as_tensor" in found.source
    assert "torch.stack" in found.fixes[0].code
    assert (
        "None of the 3 parameters" in found.explanation
        or "none of the 3 parameters" in found.explanation
    )
    assert (found.evidence["role"] == "still carried gradient").sum() == 2


def literal_asked_for_a_gradient() -> None:
    scaler, model, optimizer = scaler_and_model()
    outputs = [model(torch.tensor([[1, 2]])).sum() for _ in range(6)]
    pred = torch.as_tensor(outputs).requires_grad_()  # cut
    scaler.scale((pred - 1).pow(2).mean()).backward()
    scaler.step(optimizer)


def test_no_inf_checks_names_a_list_that_was_asked_for_a_gradient() -> None:
    found = explained(literal_asked_for_a_gradient)
    assert (found.cause, found.line) == ("graph-cut", line_of(literal_asked_for_a_gradient, "cut"))


def test_no_inf_checks_names_the_detach() -> None:
    found = explained(detached)
    assert (found.cause, found.line) == ("graph-cut", line_of(detached, "cut"))
    assert "detach" in found.title


def test_no_inf_checks_without_a_watch_says_what_cuts_a_graph() -> None:
    found = explained(list_of_logits, watched=False)
    assert found.cause == "graph-cut"
    assert "nothing to do with infinities" in found.explanation
    assert "3 parameters" in found.explanation


def test_no_inf_checks_of_an_optimizer_with_the_parameters_of_another_model() -> None:
    def program() -> None:
        scaler, model, _ = scaler_and_model()
        stranger = torch.optim.SGD(Net().parameters(), lr=0.1)
        scaler.scale(model(torch.tensor([[1, 2]])).sum()).backward()
        scaler.step(stranger)

    assert explained(program).cause == "optimizer-without-gradients"


def test_no_inf_checks_before_any_backward() -> None:
    def program() -> None:
        scaler, model, optimizer = scaler_and_model()
        scaler.scale(model(torch.tensor([[1, 2]])).sum())
        scaler.step(optimizer)

    assert explained(program).cause == "backward-missing"


def by_no_grad() -> None:
    model = Net()
    with torch.no_grad():
        hidden = model(torch.tensor([[1, 2]]))  # model
    (hidden * 2).sum().backward()


def by_item() -> None:
    model = Net()
    number = model(torch.tensor([[1, 2]])).sum().item()  # cut
    torch.tensor(number * 2).backward()


def by_numpy() -> None:
    model = Net()
    array = model(torch.tensor([[1, 2]])).detach().numpy()  # cut
    torch.from_numpy(np.log1p(np.abs(array))).sum().backward()


def by_tensor_of_array() -> None:
    model = Net()
    array = model(torch.tensor([[1, 2]])).detach().numpy()  # cut
    torch.tensor(array).sum().backward()


def by_argmax() -> None:
    model = Net()
    out = model(torch.tensor([[1, 2]]))
    choice = out.argmax(-1)  # cut
    choice.float().mean().backward()


def by_comparison() -> None:
    model = Net()
    out = model(torch.tensor([[1, 2]]))
    right = out > 0  # cut
    right.float().mean().backward()


def by_cast() -> None:
    model = Net()
    out = model(torch.tensor([[1, 2]]))
    whole = out.long()  # cut
    whole.float().mean().backward()


def by_data() -> None:
    model = Net()
    out = model(torch.tensor([[1, 2]]))
    loss = out.data.sum()  # cut
    loss.backward()


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (by_item, "item"),
        (by_numpy, "numpy"),
        (by_tensor_of_array, "numpy"),
        (by_argmax, "argmax"),
        (by_comparison, "gt"),
        (by_cast, "cast to an integer"),
        (by_data, ".data"),
        (detached, "detach"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cut_the_graph_is_told_apart(program: Program, word: str) -> None:
    found = explained(program)
    assert (found.cause, found.line) == ("graph-cut", line_of(program, "cut"))
    assert word in found.title + found.explanation


def test_no_grad_is_named_with_the_line_that_ran_in_it() -> None:
    found = explained(by_no_grad)
    assert "no_grad" in found.explanation
    assert found.line in range(*(lambda first: (first, first + 20))(inspect.getsourcelines(Net)[1]))


def test_cut_is_found_in_the_sixth_step_of_a_training_loop() -> None:
    scaler, model, optimizer = scaler_and_model()

    def program() -> None:
        for i in range(8):
            out = model(torch.tensor([[1, 2], [3, 4]]))
            total = out.sum()
            if i == 5:
                total = torch.tensor([total, out.mean()]).sum().requires_grad_()  # cut
            optimizer.zero_grad()
            scaler.scale(total).backward()
            scaler.step(optimizer)
            scaler.update()
            total.item()

    found = explained(program, model=model)
    assert (found.cause, found.line) == ("graph-cut", line_of(program, "cut"))
    assert (found.evidence["role"] == "still carried gradient").sum() == 2


def test_watched_cell_that_raises_shows_the_explanation() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "nanlab")
    cell = "%%nanwatch\nimport torch\nx = torch.ones(2, 5)\ntorch.nn.Linear(4, 3)(x)"
    with capture_output() as captured:
        result = shell.run_cell(cell)
    assert isinstance(result.error_in_exec, RuntimeError)
    shown = "".join(str(output.data.get("text/html", "")) for output in captured.outputs)
    assert "takes 4 features, its input has 5" in shown


def test_frozen_parameters_are_no_detach() -> None:
    def program() -> None:
        model = Net().requires_grad_(False)
        model(torch.tensor([[1, 2]])).sum().backward()

    found = explained(program)
    assert found.cause == "graph-cut"
    assert "requires_grad" in found.fixes[0].code


def test_loss_of_data_alone_has_no_cut_to_name() -> None:
    found = explained(lambda: torch.ones(3).sum().backward())
    assert "nothing that the loss was computed from" in found.title


# -- the graph was freed, or overwritten
# ------------------------------------------------------------


def two_losses() -> None:
    model = Net()
    out = model(torch.tensor([[1, 2]]))
    shared = out.exp()  # shared
    shared.sum().backward()  # first
    shared.mean().backward()  # second


def test_second_backward_names_both_calls_and_the_shared_node() -> None:
    found = explained(two_losses)
    first, second, shared = (line_of(two_losses, mark) for mark in ("first", "second", "shared"))
    assert (found.cause, found.line) == ("graph-freed", second)
    assert f"which backward at test_errors.py:{first} had freed" in found.title
    assert f"exp at test_errors.py:{shared}" in found.title
    assert found.evidence["op"].tolist() == ["exp"]
    assert "retain_graph" in "".join(fix.code for fix in found.fixes)


def test_hidden_state_carried_over_is_to_be_detached() -> None:
    def program() -> None:
        cell, hidden = nn.RNNCell(3, 4), torch.zeros(2, 4)
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
        for _ in range(3):
            hidden = cell(torch.ones(2, 3), hidden)
            optimizer.zero_grad()
            hidden.sum().backward()
            optimizer.step()

    found = explained(program)
    assert found.cause == "graph-freed"
    assert "detach" in found.fixes[0].code
    assert "carried over" in found.explanation


def test_gradient_that_freed_its_graph_is_to_keep_it() -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        y = x.exp().sum()
        slope = torch.autograd.grad(y, x)[0]
        (slope.sum() + y).backward()

    found = explained(program)
    assert found.cause == "graph-freed"
    assert "create_graph=True" in found.fixes[0].code


def test_second_backward_without_a_watch_gives_the_remedies() -> None:
    found = explained(two_losses, watched=False)
    assert (found.cause, found.line) == ("graph-freed", line_of(two_losses, "second"))


def saved_result_overwritten() -> None:
    weight = torch.ones(3, requires_grad=True)
    y = weight.exp()  # saved
    y += 1  # written
    y.sum().backward()


def saved_operand_overwritten() -> None:
    weight = torch.ones(3, requires_grad=True)
    x = weight * 1
    y = x * x  # saved
    x.mul_(2)  # written
    y.sum().backward()


def saved_part_overwritten() -> None:
    weight = torch.ones(3, requires_grad=True)
    y = weight.sigmoid()  # saved
    y[0] = 0  # written
    y.sum().backward()


def saved_result_erased() -> None:
    weight = torch.ones(3, requires_grad=True)
    e = weight.exp()  # saved
    y = e * 2
    e.zero_()  # written
    y.sum().backward()


def weight_overwritten_by_the_optimizer() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    out = second(first(torch.ones(2, 3)))  # saved
    out.sum().backward(retain_graph=True)
    optimizer.step()  # written
    out.mean().backward()


@pytest.mark.parametrize(
    "program",
    [
        saved_result_overwritten,
        saved_operand_overwritten,
        saved_part_overwritten,
        saved_result_erased,
        weight_overwritten_by_the_optimizer,
    ],
)
def test_overwriting_names_who_saved_and_who_wrote(program: Program) -> None:
    found = explained(program)
    assert (found.cause, found.line) == ("inplace-modification", line_of(program, "written"))
    assert f"at test_errors.py:{line_of(program, 'saved')} had saved" in found.title


def test_overwriting_without_a_watch_gives_the_remedies() -> None:
    found = explained(saved_result_overwritten, watched=False)
    assert found.cause == "inplace-modification"
    assert "the result of Exp" in found.title


def test_parameter_changed_in_place() -> None:
    def program() -> None:
        weight = torch.ones(3, requires_grad=True)
        weight += 1

    assert "no_grad" in explained(program).fixes[0].code


def root_at_zero() -> None:
    x = torch.zeros(2, requires_grad=True)
    y = x.sqrt()  # born
    with torch.autograd.set_detect_anomaly(True):
        (y * 0).sum().backward()


def test_anomaly_detection_is_answered_with_the_culprit() -> None:
    found = explained(root_at_zero)
    assert found.line == line_of(root_at_zero, "born")
    assert "SqrtBackward0" in found.title
    assert found.change is not None and found.change[1] == found.line
    assert explained(root_at_zero, watched=False).cause == "backward-nan"


def test_loss_with_several_elements() -> None:
    found = explained(lambda: Net()(torch.tensor([[1, 2]])).backward())
    assert found.cause == "loss-not-scalar"
    assert "1 x 3" in found.title


def test_numpy_of_a_tensor_with_gradient() -> None:
    assert explained(lambda: torch.ones(2, requires_grad=True).numpy()).cause == "numpy-of-graph"


# -- indices
# ------------------------------------------------------------


@pytest.mark.parametrize("watched", [True, False])
def test_embedding_index_with_its_place_in_the_batch(watched: bool) -> None:
    model = Net()
    found = explained(lambda: model(torch.tensor([[1, 2], [3, 12]])), watched, model)
    assert found.cause == "index-out-of-range"
    assert "index 12 at position [1, 1] is outside of the 10 rows of the embedding" in found.title
    assert found.module.endswith("embedding")
    assert found.evidence.to_dict("records") == [{"position": [1, 1], "index": 12}]
    assert any("nn.Embedding(" in fix.code for fix in found.fixes)
    assert "self.out(self.embedding" in found.source


@pytest.mark.parametrize("watched", [True, False])
def test_label_outside_of_the_classes(watched: bool) -> None:
    model = Net()
    target = torch.tensor([1, -100, 5])
    found = explained(
        lambda: F.cross_entropy(model(torch.tensor([[1, 2]] * 3)), target), watched, model
    )
    assert found.cause == "index-out-of-range"
    assert "target 5 at position [2] is outside of the 3 classes" in found.title
    assert "ignore_index" in "".join(fix.code for fix in found.fixes)
    assert found.evidence["index"].tolist() == [5]


def test_gather_index_outside_of_its_dimension() -> None:
    found = explained(lambda: torch.ones(2, 3).gather(1, torch.tensor([[0, 2], [1, 7]])))
    assert found.evidence.to_dict("records") == [{"position": [1, 1], "index": 7}]


def test_python_errors_of_indices_are_not_ours() -> None:
    assert explain(raised(lambda: [1, 2][5])) is None
    assert explain(raised(lambda: np.ones(3)[5])) is None


# -- shapes and dtypes
# ------------------------------------------------------------


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("kind", [nn.MSELoss, nn.Dropout])
def test_class_called_with_data_is_told_as_no_instance(kind: Any, watched: bool) -> None:
    out, target = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2)
    given = (out, target) if kind is nn.MSELoss else (out,)
    found = explained(lambda: kind(*given), watched)
    assert found.cause == "class-without-instance"
    assert kind.__name__ in found.title
    assert f"nn.{kind.__name__}()" in found.fixes[0].code


def test_condition_in_a_constructor_of_the_program_is_told_as_a_condition() -> None:
    class Weighted(nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.scale = 2.0 if weight else 1.0

    found = explained(lambda: Weighted(torch.ones(3)), True)
    assert found.cause == "ambiguous-condition"


def test_pictures_of_several_forms_are_resized() -> None:
    loader = torch.utils.data.DataLoader([torch.rand(3, 8, w) for w in (10, 8)], batch_size=2)
    found = explained(lambda: next(iter(loader)), True)
    assert found.cause == "unequal-sizes"
    assert "Resize((" in found.fixes[0].code


@pytest.mark.parametrize("watched", [True, False])
def test_stack_of_unequal_sizes_lists_the_batch(watched: bool) -> None:
    lengths = [32, 24, 7]
    data = [torch.zeros(n) for n in lengths]
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    found = explained(lambda: next(iter(loader)), watched)
    assert found.cause == "unequal-sizes"
    assert "[32]" in found.title
    assert "[24]" in found.title
    assert found.evidence["shape"].tolist() == ["32", "24", "7"]
    assert "pad_sequence" in found.fixes[0].code


@pytest.mark.parametrize("watched", [True, False])
def test_linear_layer_of_another_width(watched: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(32, 5))
    found = explained(lambda: model(torch.zeros(1, 1, 6, 6)), watched, model)
    assert found.cause == "shape-mismatch"
    assert "takes 32 features, its input has 4" in found.title
    assert any("flatten(1)" in fix.code for fix in found.fixes)
    assert found.module == ("1" if watched else "Sequential.1")


def test_matrix_product_by_hand() -> None:
    found = explained(lambda: torch.zeros(4, 10) @ torch.zeros(8, 10))
    assert "4 x 10 times 8 x 10" in found.title
    assert "transpose" in found.fixes[0].code


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            lambda: torch.bmm(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)),
            "2 x 3 x 4 times 2 x 5 x 4",
        ),
        (lambda: torch.zeros(3, 4) @ torch.zeros(5), "4 and 5"),
        (lambda: torch.zeros(3, 4) + torch.zeros(3, 5), "sizes 4 and 5"),
        (lambda: nn.Conv2d(3, 1, 1)(torch.zeros(1, 1, 8, 8)), "takes 3 channels"),
        (lambda: nn.Conv2d(3, 1, 1)(torch.zeros(1, 8, 8, 3)), "takes 3 channels"),
        (lambda: torch.cat([torch.zeros(2, 3), torch.zeros(2, 4)]), "has size 4"),
    ],
)
@pytest.mark.parametrize("watched", [True, False])
def test_shapes_that_do_not_fit(program: Program, words: str, watched: bool) -> None:
    found = explained(program, watched)
    assert found.cause in ("shape-mismatch", "unequal-sizes")
    if watched or "x" not in words:
        assert words in found.title


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: nn.Linear(2, 2)(torch.zeros(1, 2, dtype=torch.float64)), ("float64", "float32")),
        (lambda: nn.Linear(2, 2).half()(torch.zeros(1, 2)), ("float16", "float32")),
        (lambda: nn.Conv1d(1, 1, 1)(torch.zeros(1, 1, 3).half()), ("float16", "float32")),
        (lambda: F.cross_entropy(torch.zeros(2, 3), torch.zeros(2)), ("float32", "int64")),
        (
            lambda: F.cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32)),
            ("int32", "int64"),
        ),
        (lambda: F.binary_cross_entropy(torch.zeros(2), torch.zeros(2).long()), ("int64",)),
        (lambda: torch.arange(3).mean(), ("int64",)),
        (lambda: nn.Embedding(3, 2)(torch.zeros(2)), ("float32",)),
        (lambda: torch.nn.functional.softmax(torch.arange(3), 0), ("int64",)),
        (lambda: torch.arange(3).div_(2.0), ("float32",)),
    ],
)
def test_dtypes_that_do_not_fit(program: Program, words: tuple[str, ...], watched: bool) -> None:
    error = raised(program, watched)
    found = explain(error)
    assert found is not None, str(error)
    assert found.cause == "dtype-mismatch"
    for word in words:
        assert word in found.title


def test_probability_that_is_none() -> None:
    assert (
        explained(lambda: F.binary_cross_entropy(torch.tensor([1.5]), torch.ones(1))).cause
        == "not-a-probability"
    )


def test_checkpoint_of_another_model() -> None:
    found = explained(
        lambda: nn.Linear(2, 3).load_state_dict(
            {"weight": torch.zeros(4, 2), "extra": torch.zeros(1)}
        )
    )
    assert found.cause == "state-dict-mismatch"
    assert found.evidence.set_index("name")["model"].to_dict() == {
        "weight": "3, 2",
        "bias": "wanted",
        "extra": "unknown",
    }


def test_checkpoint_of_a_wrapped_model() -> None:
    state = {f"module.{name}": value for name, value in nn.Linear(2, 3).state_dict().items()}
    found = explained(lambda: nn.Linear(2, 3).load_state_dict(state))
    assert "removeprefix" in found.fixes[0].code


# -- devices: the genuine messages, for there need be no GPU
# ------------------------------------------------------

GENUINE = {
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1": (
        "device-failure",
        "resize_token_embeddings",
    ),
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": (
        "device-failure",
        "resize_token_embeddings",
    ),
    "Attempting to deserialize object on CUDA device 2 but torch.cuda.device_count() is 1. Please use torch.load with map_location to map your storages to an existing device.": (
        "missing-device",
        "map_location",
    ),
    "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU.": (
        "missing-device",
        "map_location",
    ),
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.77 GiB": (
        "out-of-memory",
        "accumulate",
    ),
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)": (
        "out-of-memory",
        "accumulate",
    ),
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when checking argument for argument index in method wrapper_CUDA__index_select)": (
        "mixed-devices",
        ".to(",
    ),
    "Expected all tensors to be on the same device, but got mat1 is on cpu, different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)": (
        "mixed-devices",
        ".to(",
    ),
    "DataLoader worker (pid 4242) is killed by signal: Killed. ": ("worker-died", "np.array"),
    "DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.": (
        "worker-died",
        "shm-size",
    ),
    "DataLoader worker (pid(s) 4242, 4243) exited unexpectedly": ("worker-died", "num_workers=0"),
    "expected scalar type Half but found Float": ("dtype-mismatch", "autocast"),
    "expected m1 and m2 to have the same dtype, but got: float != c10::Half": (
        "dtype-mismatch",
        "autocast",
    ),
    "Found dtype Long but expected Float": ("dtype-mismatch", "float()"),
    "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same": (
        "dtype-mismatch",
        "float()",
    ),
    "expected scalar type Long but found Int": ("dtype-mismatch", "long()"),
    "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.": (
        "numpy-of-graph",
        "detach()",
    ),
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.": (
        "numpy-of-graph",
        "cpu()",
    ),
    "index 5 is out of bounds for dimension 0 with size 3": ("index-out-of-range", "min()"),
    "size mismatch, got input (4), mat (4x3), vec (5)": ("shape-mismatch", "shape"),
    "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0": (
        "wrong-argument",
        "clamp(min=1)",
    ),
    "Batch norm got a batched tensor as input while the running_mean or running_var, which will be updated in place, were not batched.": (
        "wrong-argument",
        "GroupNorm",
    ),
    "For unbatched 2-D input, hx should also be 2-D but got 3-D tensor": (
        "shape-mismatch",
        "keepdim=True",
    ),
    "For batched 3-D input, hx and cx should also be 3-D but got (2-D, 2-D) tensors": (
        "shape-mismatch",
        "keepdim=True",
    ),
    "No KL(p || q) is implemented for p type Independent and q type Normal": (
        "wrong-argument",
        "Independent(",
    ),
    "loaded state dict has a different number of parameter groups": ("wrong-argument", "params"),
    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group": (
        "wrong-argument",
        "params",
    ),
    "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, got 4": (
        "wrong-argument",
        "cumsum",
    ),
    "expand(torch.FloatTensor{[3, 4]}, size=[5]): the number of sizes provided (1) must be greater or equal to the number of dimensions in the tensor (2)": (
        "shape-mismatch",
        "x.expand(5, -1, -1)",
    ),
    "split_with_sizes expects split_sizes to sum exactly to 10 (input tensor's size at dimension 0), but got split_sizes=[6, 3]": (
        "shape-mismatch",
        "x.split([n, x.size(0) - n], dim=0)",
    ),
    "selected index k out of range": ("wrong-argument", "x.topk(min(k, x.size(-1)))"),
    "Dimension out of range (expected to be in range of [-1, 0], but got 1)": (
        "shape-mismatch",
        "x.sum(1, keepdim=True)",
    ),
    "too many indices for tensor of dimension 1": ("shape-mismatch", "print(x.shape)"),
    "tensors used as indices must be long, int, byte or bool tensors": (
        "dtype-mismatch",
        "x[index.long()]",
    ),
    "a Tensor with 3 elements cannot be converted to Scalar": ("shape-mismatch", "x.mean().item()"),
    "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the `~` or `logical_not()` operator instead.": (
        "dtype-mismatch",
        "~mask  # or 1 - mask.float()",
    ),
    "max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument.": (
        "empty-data",
        "print(len(tensors))",
    ),
    "Calculated padded input size per channel: (3). Kernel size: (5). Kernel size can't be greater than actual input size": (
        "shape-mismatch",
        "nn.Conv2d(8, 16, 3, padding=1)",
    ),
    "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but input.size(-3)=6 is not divisible by 4": (
        "shape-mismatch",
        "nn.Conv2d(width, channels * factor**2, 3, padding=1)",
    ),
    "Padding length must be divisible by 2": (
        "wrong-argument",
        "F.pad(x, (left, right, top, bottom))",
    ),
    "Output 0 of SplitBackward0 is a view and is being modified inplace. This view is the output of a function that returns multiple views.": (
        "inplace-modification",
        "part = part.clone()",
    ),
    "Got unsupported ScalarType BFloat16": ("dtype-mismatch", "x.float().numpy()"),
    "Got unsupported ScalarType QInt8": ("dtype-mismatch", "quantized.dequantize()"),
    "promoteTypes with quantized numbers is not handled yet; figure out what the correct rules should be, offending types: Float QInt8": (
        "dtype-mismatch",
        "quantized.dequantize()",
    ),
    "grad can be implicitly created only for real scalar outputs but got torch.complex64": (
        "complex-loss",
        "(a - b).abs().square().mean()",
    ),
    "mutable default <class '__main__.make.<locals>.Optim'> for field optim is not allowed: use default_factory": (
        "shared-default",
        "optim: Optim = field(default_factory=lambda: ...)",
    ),
    "GELU.forward() missing 1 required positional argument: 'input'": ("missing-argument", ""),
    "new(): invalid data type 'str'": (
        "dtype-mismatch",
        'torch.tensor(frame[columns].to_numpy(dtype="float32"))',
    ),
    "expected sequence of length 3 at dim 1 (got 2)": (
        "unequal-sizes",
        "nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)",
    ),
    "At least one stride in the given numpy array is negative, and tensors with negative strides are not currently supported.": (
        "wrong-argument",
        "torch.from_numpy(image[:, ::-1].copy())",
    ),
    "expected Tensor as element 0 in argument 0, but got NoneType": (
        "wrong-argument",
        "torch.stack([torch.as_tensor(each) for each in values])",
    ),
    "Tensors must have same number of dimensions: got 2 and 3": (
        "shape-mismatch",
        "torch.cat([a, b.unsqueeze(1)], dim=1)",
    ),
    "batch1 must be a 3D tensor": ("shape-mismatch", "a @ b"),
    "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [3, 4]": (
        "shape-mismatch",
        "x.unsqueeze(1)",
    ),
    "einsum(): the number of subscripts in the equation (2) does not match the number of dimensions (3) for operand 0 and no ellipsis was given": (
        "shape-mismatch",
        'torch.einsum("...d,de->...e", x, w)',
    ),
    "Function MulBackward0 returned an invalid gradient at index 0 - got [3] but expected shape compatible with [4]": (
        "shape-mismatch",
        "grad.sum_to_size(x.shape)",
    ),
    "function SquareBackward returned an incorrect number of gradients (expected 2, got 1)": (
        "wrong-argument",
        "return grad_x, None",
    ),
    "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd function with static forward method.": (
        "wrong-argument",
        "y = Square.apply(x)",
    ),
    "Cannot copy out of meta tensor; no data!": ("missing-values", 'model.to_empty(device="cpu")'),
    "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True.": (
        "wrong-argument",
        "pack_padded_sequence(x, lengths, enforce_sorted=False)",
    ),
    "Expected `len(lengths)` to be equal to batch_size, but got 3 (batch_size=2)": (
        "shape-mismatch",
        "pack_padded_sequence(x, lengths, batch_first=True)",
    ),
    "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering of dimensions i.e. input.dim() = 3 is not equal to len(dims) = 2": (
        "shape-mismatch",
        "x.permute(0, 2, 1)",
    ),
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please clone() the tensor before performing the operation.": (
        "inplace-modification",
        "x = x.expand(4, -1).clone()",
    ),
    "Weights only load failed. This file can still be loaded": (
        "file-refused",
        "torch.load(path, weights_only=False)",
    ),
    "vmap: It looks like you're calling .item() on a Tensor.": (
        "wrong-argument",
        "torch.where(x > 0, x, 0.1 * x)",
    ),
    "vmap: called random operation while in randomness error mode.": (
        "wrong-argument",
        'torch.func.vmap(f, randomness="different")',
    ),
    "unflatten: Provided sizes [2, 3] don't multiply up to the size of dim 0 (5) in the input tensor": (
        "shape-mismatch",
        "x.unflatten(0, (heads, -1))",
    ),
    "Default process group has not been initialized, please make sure to call init_process_group.": (
        "no-process-group",
        'torch.distributed.init_process_group("gloo")',
    ),
    "Expected to have finished reduction in the prior iteration before starting a new one.": (
        "unused-parameter",
        "DistributedDataParallel(model, find_unused_parameters=True)",
    ),
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method": (
        "device-failure",
        "x = x.to(device)",
    ),
    "An attempt has been made to start a new process before the current process has finished its bootstrapping phase.": (
        "worker-died",
        'if __name__ == "__main__":',
    ),
    "cudnn RNN backward can only be called in training mode": ("wrong-mode", "model.train()"),
    "len() of a 0-d tensor": ("shape-mismatch", "x.reshape(-1)"),
    "Integers to negative integer powers are not allowed.": ("wrong-argument", "x.float() ** -1"),
    "Index put requires the source and destination dtypes match, got Float for the destination and Double for the source.": (
        "dtype-mismatch",
        "x[index] = values.to(x.dtype)",
    ),
    "masked_fill_ only supports boolean masks, but got mask with dtype int": (
        "dtype-mismatch",
        'x.masked_fill(mask == 0, float("-inf"))',
    ),
    "linalg.solve: A must be batches of square matrices, but they are 4 by 3 matrices": (
        "wrong-argument",
        "torch.linalg.lstsq(A, b).solution",
    ),
    "ctc_loss: Expected input_lengths to have value at most 20, but got value 40": (
        "wrong-argument",
        "lengths = (lengths + 1) // 2",
    ),
    "Adam does not support sparse gradients, please consider SparseAdam instead": (
        "wrong-argument",
        "nn.Embedding(rows, width)  # without sparse=True",
    ),
    "some parameters appear in more than one parameter group": (
        "wrong-argument",
        "rest = [p for p in parameters if p not in chosen]",
    ),
    "param 'initial_lr' is not specified in param_groups[0] when resuming scheduler with last_epoch >= 0.": (
        "missing-argument",
        'optimizer.load_state_dict(checkpoint["optimizer"])',
    ),
    "batch_mean is not a valid value for reduction": (
        "wrong-argument",
        'nn.KLDivLoss(reduction="batchmean")',
    ),
    "attribute 'type' already exists": (
        "wrong-argument",
        'nn.ModuleDict({"emb_" + name: layer for name in names})',
    ),
    "Torch not compiled with CUDA enabled": ("missing-device", "torch.arange(n, device=x.device)"),
    "num_samples should be a positive integer value, but got num_samples=0": (
        "empty-data",
        "print(len(dataset))",
    ),
    "sampler option is mutually exclusive with shuffle": (
        "wrong-argument",
        "DataLoader(dataset, batch_size=32, sampler=sampler)",
    ),
    "prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None.": (
        "wrong-argument",
        "DataLoader(dataset, num_workers=2, prefetch_factor=...)",
    ),
    "Nesterov momentum requires a momentum and zero dampening": (
        "wrong-argument",
        "torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)",
    ),
    "Invalid learning rate: -0.1": ("wrong-argument", ""),
    "Either `probs` or `logits` must be specified, but not both.": (
        "wrong-argument",
        "Categorical(logits=scores)",
    ),
    "Value is not broadcastable with batch_shape+event_shape: torch.Size([10]) vs torch.Size([4]).": (
        "shape-mismatch",
        "distribution.log_prob(x.unsqueeze(1))  # (samples, batch)",
    ),
    'Module [Net] is missing the required "forward" function': (
        "missing-argument",
        "def forward(self, x):",
    ),
    "cannot assign 'torch.FloatTensor' as parameter 'w' (torch.nn.Parameter or None expected)": (
        "wrong-argument",
        "with torch.no_grad():",
    ),
    "Expected state_dict to be dict-like, got <class 'str'>.": (
        "wrong-argument",
        "model.load_state_dict(other.state_dict())",
    ),
    'Only "zeros" padding mode is supported for ConvTranspose2d': (
        "wrong-argument",
        "nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1)",
    ),
    "Got 3D input, but bilinear mode needs 4D input": (
        "shape-mismatch",
        "F.interpolate(x[None], size=size)[0]",
    ),
    "num_channels (48) must be divisible by num_groups (32)": (
        "shape-mismatch",
        "nn.GroupNorm(8, 48)",
    ),
    "Expected 2 lr_lambdas, but got 1": (
        "wrong-argument",
        "LambdaLR(optimizer, [warm_up] * len(optimizer.param_groups))",
    ),
    "Tried to step 7 times. The specified number of total steps is 6": (
        "wrong-argument",
        "OneCycleLR(optimizer, max_lr, total_steps=epochs * len(loader))",
    ),
    "Attempting to unscale FP16 gradients.": (
        "scaler-misuse",
        'with torch.autocast("cuda", torch.float16):',
    ),
    "Attempted step but _scale is None.  This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration.": (
        "scaler-misuse",
        "scaler.scale(loss).backward()",
    ),
    "you can only change requires_grad flags of leaf variables.": ("graph-cut", "h = h.detach()"),
    "You tried to vmap over Square, but it does not have vmap support.": (
        "wrong-argument",
        "@staticmethod",
    ),
}


@pytest.mark.parametrize("text", GENUINE, ids=lambda text: re.sub(r"\W+", "-", text)[:40])
def test_genuine_message_is_known(text: str) -> None:
    cause, remedy = GENUINE[text]
    found = explain(RuntimeError(text))
    assert found is not None
    assert found.cause == cause
    assert remedy in "\n".join(fix.code for fix in found.fixes)


def test_ragged_samples_of_a_worker_are_told_as_those_of_a_stack() -> None:
    rows = [torch.ones(n) for n in range(2, 6)]
    loader = torch.utils.data.DataLoader(rows, batch_size=4, num_workers=1)  # type: ignore[arg-type,var-annotated]
    with pytest.raises(RuntimeError) as caught:
        next(iter(loader))
    found = explain(caught.value)
    assert found is not None and found.cause == "unequal-sizes"
    assert "pad_sequence" in found.fixes[0].code


def test_every_ragged_sample_of_a_watched_batch_is_shown() -> None:
    rows = [{"ids": torch.ones(n)} for n in range(2, 7)]
    loader = torch.utils.data.DataLoader(rows, batch_size=5)  # type: ignore[arg-type,var-annotated]
    found = explained(lambda: next(iter(loader)))
    assert len(found.evidence) == 5 and "go from 2 to 6" in found.title


def test_deserialising_names_the_devices() -> None:
    found = explain(
        RuntimeError(
            "Attempting to deserialize object on CUDA device 2 but torch.cuda.device_count() is 1."
            " Please use torch.load"
        )
    )
    assert found is not None
    assert found.title == "the file was saved from cuda:2, and this machine has 1 CUDA device"


def test_memory_on_the_host_for_real() -> None:
    found = explained(lambda: torch.empty(1 << 46))
    assert found.cause == "out-of-memory"
    assert "262,144.0 GiB" in found.title


# -- explain itself
# ------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), KeyError("labels"), RuntimeError(""), AssertionError(), KeyboardInterrupt()],
)
def test_unknown_exception_means_nothing(error: BaseException) -> None:
    assert explain(error) is None


def test_default_is_the_exception_that_ended_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr("sys." + name, raising=False)
    raised(two_losses)
    found = explain()
    assert found is not None
    assert found.line == line_of(two_losses, "second")


def clips_a_bad_gradient() -> None:
    layer = nn.Linear(3, 1)
    y = layer(torch.ones(1, 3))
    torch.sqrt(y - y.detach()).sum().backward()  # root
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)


def test_a_norm_that_clipping_refuses_is_told_by_the_culprit() -> None:
    with nanlab.watch(on_fault="record"):
        try:
            clips_a_bad_gradient()
        except RuntimeError:
            inside = str(explain())
    assert "is not finite because of sqrt" in inside
    assert "is not finite because of sqrt" in str(explain(raised(clips_a_bad_gradient)))


def test_a_norm_that_clipping_refuses_without_a_watch_is_one_that_backward_made() -> None:
    with pytest.raises(RuntimeError) as caught:
        clips_a_bad_gradient()
    assert "to be clipped" in str(explain(caught.value))


def test_default_is_the_exception_being_handled_before_any_other() -> None:
    raised(two_losses)
    try:
        raise KeyError("missing")
    except KeyError:
        assert explain() is None
    try:
        nn.Embedding(3, 2)(torch.tensor([7]))
    except IndexError:
        found = explain()
    assert found is not None and "index 7" in found.title
    assert "index 7" not in str(explain())  # it is over


def test_exception_caught_inside_a_watch_is_explained_there() -> None:
    with nanlab.watch():
        try:
            two_losses()
        except RuntimeError as error:
            found = explain(error)
    assert found is not None
    assert "exp at test_errors.py" in found.title


def test_another_exception_is_not_explained_by_the_last_run() -> None:
    raised(two_losses)
    try:
        Net()(torch.tensor([[99]]))
    except IndexError as error:
        found = explain(error)
    assert found is not None
    assert found.cause == "index-out-of-range"


def test_explain_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    @means("stack")
    def broken(case: explanations.Case) -> Explanation | None:
        raise KeyError("broken")

    monkeypatch.setattr(explanations, "MEANINGS", [broken])
    assert explain(RuntimeError("stack")) is None
    assert explain("no exception") is None  # type: ignore[arg-type]


def test_trace_keeps_no_tensor_of_a_failed_program_alive() -> None:
    import gc
    import weakref

    kept: list[weakref.ref[torch.Tensor]] = []

    def program() -> None:
        x = torch.zeros(2, 5)
        kept.append(weakref.ref(x))
        nn.Linear(4, 3)(x)

    try:
        with nanlab.watch():
            program()
    except RuntimeError:
        pass
    gc.collect()
    assert kept[0]() is None


@pytest.mark.parametrize(("rows", "code"), [(6, "x[mask]"), (3, "x[:, mask]")])
def test_mask_is_put_where_its_size_is(rows: int, code: str) -> None:
    def program() -> object:
        kept, table = torch.ones(rows, dtype=torch.bool), torch.zeros(6, 3)
        return table[:, kept] if rows == 6 else table[kept]

    assert explained(program).fixes[-1].code == code


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_emb = nn.Embedding(8, 4)
        self.pos = nn.Parameter(torch.zeros(1, 8, 4))

    def forward(self, x: torch.Tensor, table: bool) -> torch.Tensor:
        return x + (self.pos_emb(torch.arange(x.shape[1])) if table else self.pos[:, : x.shape[1]])


@pytest.mark.parametrize("table", [True, False])
def test_sequence_longer_than_the_positions_is_said_to_be(table: bool) -> None:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        Positions()(torch.randn(2, 12, 4), table)
    told = nanlab.explain(caught.value)
    assert told is not None and "position" in told.title
    assert any("[:, :8]" in fix.code for fix in told.fixes)
    assert not any("resize_token_embeddings" in fix.code for fix in told.fixes)


def test_field_that_cannot_be_joined_is_named() -> None:
    samples: Any = [{"x": torch.ones(2), "label": None} for _ in range(3)]
    with pytest.raises(TypeError) as caught:
        next(iter(torch.utils.data.DataLoader(samples, 3)))
    told = nanlab.explain(caught.value)
    assert told is not None and "`label` of a sample is None" in told.title


def test_class_numbers_in_the_place_of_one_for_each_class_are_named() -> None:
    with pytest.raises(ValueError, match="must be the same as") as caught:
        nn.BCEWithLogitsLoss()(torch.randn(3, 4), torch.tensor([0.0, 1.0, 2.0]))
    told = nanlab.explain(caught.value)
    assert told is not None and "target.long()" in told.fixes[0].code


def test_one_hot_labels_of_a_loss_of_class_numbers_are_named() -> None:
    labels = torch.eye(4, dtype=torch.int64).view(-1)
    with pytest.raises(ValueError, match="to match target batch_size") as caught:
        F.cross_entropy(torch.randn(4, 4), labels)
    told = nanlab.explain(caught.value)
    assert told is not None and "target.argmax(1)" in told.fixes[0].code
