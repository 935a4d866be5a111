"""%nanwatch and %%nanwatch in a real InteractiveShell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab
from nanlab.notebook import magics
from nanlab.notebook.cell import cell_as_line

SETUP = """\
import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(4, 2)
def train(n, loss_of):
    for i in range(n):
        optimizer.zero_grad()
        loss = loss_of(model(x), i)
        loss.backward()
        optimizer.step()
    return n
def healthy(y, i):
    return (y ** 2).mean()
def faulty(y, i):
    return (y * 0).sqrt().sum()
"""


@dataclass
class Ran:
    """What one cell left."""

    value: Any
    error: BaseException | None
    success: bool
    out: str
    err: str
    shown: list[str]  # plain text of what was displayed

    @property
    def text(self) -> str:
        return "\n".join([self.out, self.err, *self.shown])


Cell = Callable[[str], Ran]


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell.instance()
    made.colors = "nocolor"
    made.history_manager.enabled = False
    yield made
    InteractiveShell.clear_instance()


@pytest.fixture
def cell(shell: InteractiveShell) -> Iterator[Cell]:
    """Run a cell in a fresh namespace with nanlab loaded."""
    # shell.reset() also collects garbage, for 0.4 s
    for name in shell.user_ns.keys() - shell.user_ns_hidden.keys():
        del shell.user_ns[name]
    magics.load_ipython_extension(shell)

    def run(code: str) -> Ran:
        with capture_output() as captured:
            result = shell.run_cell(code, store_history=True)
        shown = [output.data.get("text/plain", "") for output in captured.outputs]
        error = result.error_before_exec or result.error_in_exec
        return Ran(result.result, error, result.success, captured.stdout, captured.stderr, shown)

    assert run(SETUP).success
    yield run
    magics.unload_ipython_extension(shell)


def test_watched_cell_keeps_its_value_its_output_and_its_place_in_history(
    cell: Cell, shell: InteractiveShell
) -> None:
    ran = cell("%%nanwatch model\nprint('hello')\ntrain(2, healthy) + 5")
    assert ran.value == 7
    assert "hello\n" in ran.out
    assert shell.user_ns["_"] == 7
    assert shell.user_ns["In"][-1].endswith("train(2, healthy) + 5")


def test_loading_the_extension_loads_the_kernels_too(
    cell: Cell, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(magics, "load_early", lambda: asked.append("kernels"))
    magics.load_ipython_extension(shell)
    assert asked == ["kernels"]


def test_semicolon_silences_the_value_as_without_a_watch(cell: Cell) -> None:
    assert "Out[" in cell("%%nanwatch model\ntrain(2, healthy)").out
    assert "Out[" not in cell("%%nanwatch model\ntrain(2, healthy);").out


def test_healthy_run_says_so_in_one_line(cell: Cell) -> None:
    ran = cell("%%nanwatch model\ntrain(3, healthy);")
    assert ran.success
    assert ran.err == ""
    assert len(ran.text.strip().splitlines()) == 1, ran.text


def test_first_harmful_fault_ends_the_cell_with_the_report_in_place_of_a_traceback(
    cell: Cell,
) -> None:
    ran = cell("done = []\n")
    ran = cell("%%nanwatch model -o trace\ntrain(2, faulty)\ndone.append(1)")
    assert not ran.success
    assert "Traceback" not in ran.text
    assert "sqrt" in ran.text
    assert cell("done").value == []
    assert cell("trace.culprit.cause").value == "sqrt-at-zero"
    assert cell("trace.culprit.source").value == "return (y * 0).sqrt().sum()"


def test_recording_lets_the_cell_run_to_its_end_and_then_reports(cell: Cell) -> None:
    ran = cell("%%nanwatch model --on-fault record -o trace\ntrain(2, faulty)")
    assert ran.success
    assert ran.value == 2
    assert "sqrt" in ran.text
    assert cell("trace.culprit.cause").value == "sqrt-at-zero"


def test_detail_fault_ends_the_cell_with_the_culprit_of_a_full_watch(cell: Cell) -> None:
    told = []
    for options in ("", "--detail fault"):
        ran = cell(f"%%nanwatch model {options} -o trace\ntrain(4, faulty)")
        assert not ran.success and "Traceback" not in ran.text and "sqrt" in ran.text
        assert cell("trace.recording.detail").value == ("fault" if options else "full")
        fixes = "[(f.title, f.verdict) for f in c.fixes]"
        told.append(cell(f"c = trace.culprit\n(c.cause, c.title, c.step, {fixes})").value)
    assert told[0] == told[1] and told[0][0] == "sqrt-at-zero"


def test_steps_end_the_cell_without_an_error(cell: Cell) -> None:
    ran = cell("seen = []\nNone")
    ran = cell(
        "%%nanwatch model --steps 3 -o trace\ntrain(100, lambda y, i: seen.append(i) or healthy(y,"
        " i))\nseen = 0"
    )
    assert ran.success
    assert ran.error is None
    assert "Traceback" not in ran.text
    assert "StepsDone" not in ran.text
    assert "3 training steps watched, as asked; the rest of the cell was not run." in ran.shown
    assert cell("len(seen)").value == 3
    assert cell("len(trace.steps)").value == 3


def test_handlers_of_the_users_own_survive_a_watch(cell: Cell, shell: InteractiveShell) -> None:
    met = []
    shell.set_custom_exc(
        (LookupError,), lambda shell, kind, value, tb, tb_offset=None: met.append(kind)
    )
    try:
        cell("%%nanwatch model --steps 1\n{}['x']")
        cell("%%nanwatch model --steps 1\ntrain(9, healthy)")
        cell("{}['y']")
    finally:
        shell.set_custom_exc((), None)
    assert met == [KeyError, KeyError]


def test_a_layer_that_another_cell_made_is_written_anew_there(cell: Cell) -> None:
    cell("import torch\ntable = torch.nn.Embedding(50, 8)")
    ran = cell("%%nanwatch table\ntable(torch.tensor([3, 57]))")
    assert isinstance(ran.error, IndexError)
    (edit,) = nanlab.explain(ran.error).fixes[0].edits
    assert edit.text == "table = torch.nn.Embedding(58, 8)"
    assert edit.file.startswith("In[") and edit.first == 2


def test_exception_of_the_users_own_keeps_its_traceback_and_line_number(cell: Cell) -> None:
    ran = cell("%%nanwatch model\ntrain(1, healthy)\n1 / 0")
    assert isinstance(ran.error, ZeroDivisionError)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", ran.out)
    assert "line 3" in shown or "-> 3 1 / 0" in shown  # of IPython 7
    assert ran.out.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize(
    "code",
    [
        "torch.ones(2, 3) @ torch.ones(2, 3)",
        (
            "x = torch.ones(3, requires_grad=True)\nx.register_hook(lambda g:"
            " g.no_such_thing)\nx.sum().backward()"
        ),
        "torch.ones(3, requires_grad=True).backward()",
    ],
)
def test_traceback_shows_no_frame_of_ours(cell: Cell, code: str) -> None:
    def files(text: str) -> list[str]:
        return re.findall(r"^(?:File \S+/([\w.]+):\d+|Cell)", text.split("Traceback", 1)[1], re.M)

    bare, watched = cell(code), cell(f"%%nanwatch\n{code}")
    assert type(watched.error) is type(bare.error)
    assert files(cell("%tb").out) == files(bare.out)
    assert "nanlab" not in watched.out


def test_frames_of_libraries_are_one_line_and_the_users_own_are_whole(cell: Cell) -> None:
    ran = cell("%%nanwatch model  # look\ndef go():\n    return model(torch.ones(4, 5))\ngo()")
    folded = r"\.\.\. \d+ frames of torch folded \(%tb shows all\), the last: (\S+py):\d+, (\S+)"
    ((path, function),) = re.findall(folded, ran.out)
    assert path == "nn/modules/linear.py" and function in ("Linear.forward", "forward")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", ran.out)
    assert [text.strip() for text in re.findall(r"^-+> \d+(.*)$", shown, re.M)] == [
        "go()",
        "return model(torch.ones(4, 5))",
    ]
    assert shown.count("RuntimeError: mat1 and mat2 shapes cannot be multiplied") == 1


def test_traceback_shows_the_first_line_as_it_was_typed(
    cell: Cell, shell: InteractiveShell
) -> None:
    shell.colors = "linux"
    try:
        out = cell("%%nanwatch model -o trace\n1 / 0").out
    finally:
        shell.colors = "nocolor"
    assert "\x1b[" in out
    assert "%%nanwatch model -o trace" in out
    assert "_nanwatch_cell" not in out


def test_crashed_cell_has_the_explanation_first_and_no_verdict_on_a_healthy_run(cell: Cell) -> None:
    ran = cell("%%nanwatch model -o trace\ntrain(1, healthy)\nmodel(torch.ones(4, 5))")
    (shown,) = ran.shown
    assert shown.startswith("the layer Linear takes 2 features, its input has 5")
    assert "No harmful" not in ran.text
    assert cell("len(trace.steps)").value == 1


def test_crashed_cell_with_a_fault_has_its_report_too(cell: Cell) -> None:
    ran = cell("%%nanwatch model --on-fault record\ntrain(1, faulty)\nmodel(torch.ones(4, 5))")
    assert len(ran.shown) == 2
    assert "sqrt" in ran.shown[1]


def test_crash_of_a_cell_run_inside_leaves_the_watch_of_the_outer_running(cell: Cell) -> None:
    ran = cell("%%nanwatch model -o trace\nget_ipython().run_cell('1 / 0')\ntrain(2, healthy);")
    assert ran.success
    assert cell("len(trace.steps)").value == 2


def test_showing_of_tracebacks_is_as_it_was_when_the_cell_has_ended(
    cell: Cell, shell: InteractiveShell
) -> None:
    for code in ("train(1, healthy)", "1 / 0", "train(9, faulty)", "raise KeyboardInterrupt"):
        cell(f"%%nanwatch model\n{code}")
        assert "showtraceback" not in vars(shell)


def test_showing_that_another_tool_has_put_in_place_stays(
    cell: Cell, shell: InteractiveShell
) -> None:
    met: list[str] = []

    def show(shell: InteractiveShell, *args: Any, **kwargs: Any) -> None:
        met.append("shown")

    try:
        vars(shell)["showtraceback"] = before = MethodType(show, shell)
        cell("%%nanwatch model\n1 / 0")
        assert vars(shell)["showtraceback"] is before and met == ["shown"]
        del vars(shell)["showtraceback"]
        shell.user_ns["other"] = before
        cell("%%nanwatch model\nvars(get_ipython())['showtraceback'] = other")
        assert vars(shell)["showtraceback"] is before
    finally:
        vars(shell).pop("showtraceback", None)


def test_await_works_in_a_watched_cell(cell: Cell) -> None:
    ran = cell(
        "%%nanwatch model -o trace\nimport asyncio\nawait asyncio.sleep(0)\ntrain(2, healthy)"
    )
    assert ran.value == 2
    assert cell("len(trace.steps)").value == 2


def test_interrupt_ends_the_cell_and_reports_what_was_recorded(cell: Cell) -> None:
    ran = cell("%%nanwatch model -o trace\ntrain(2, healthy)\nraise KeyboardInterrupt")
    assert isinstance(ran.error, KeyboardInterrupt)
    assert cell("len(trace.steps)").value == 2


def test_interrupt_in_the_middle_of_backward_leaves_torch_and_the_shell_as_they_were(
    cell: Cell,
) -> None:
    interrupted = """%%nanwatch model -o trace
def stop(gradient):
    raise KeyboardInterrupt
y = model(x)
y.register_hook(stop)
y.exp().sum().backward()"""
    ran = cell(interrupted)
    assert isinstance(ran.error, KeyboardInterrupt)
    assert len(ran.shown) == 1, "what was recorded is reported"
    assert "nanwatch:" not in ran.err
    assert cell("sorted({'exp', 'sum'} & set(trace.ops.op))").value == ["exp", "sum"]
    assert cell("%%nanwatch model -o again\ntrain(2, healthy)").value == 2
    assert cell("len(again.steps), bool(again.findings)").value == (2, False)
    assert cell("len(torch.utils._python_dispatch._get_current_dispatch_mode_stack())").value == 0


def test_a_watched_cell_inside_a_watch_is_one_line_and_the_outer_watch_goes_on(cell: Cell) -> None:
    inner = "get_ipython().run_cell('%%nanwatch model\\nx.exp()')"
    ran = cell(f"import nanlab\nwith nanlab.watch(model) as outer:\n    {inner}\n    x.sqrt()")
    assert ran.success
    assert ran.err.strip().splitlines() == [
        "UsageError: a watch is already running (they do not nest); leave its `with` block first,"
        " or in a notebook take %%nanwatch off the cell or type: %nanwatch off"
    ]
    assert cell("[op for op in ('exp', 'sqrt') if op in set(outer.ops.op)]").value == ["sqrt"]


def test_work_in_another_thread_is_said_not_to_be_seen(cell: Cell) -> None:
    ran = cell(
        "%%nanwatch model\nimport threading\nt = threading.Thread(target=train, args=(1,"
        " healthy))\nt.start(); t.join()"
    )
    assert ran.success
    (shown,) = ran.shown
    assert "no operation ran in this thread" in shown
    assert "\n" not in shown


def test_results_are_bit_identical_with_and_without_a_watch(cell: Cell) -> None:
    cell(SETUP + "train(5, healthy)")
    plain = cell("model.weight.detach().clone()").value
    cell(SETUP)
    cell("%%nanwatch model\ntrain(5, healthy)")
    assert torch.equal(plain, cell("model.weight.detach()").value)


def test_armed_watch_covers_every_following_cell_until_off(cell: Cell) -> None:
    assert "%nanwatch off" in cell("%nanwatch model -o trace").out
    assert cell("train(1, healthy)").shown
    first = cell("trace").value
    assert cell("train(2, healthy)").value == 2
    second = cell("trace").value
    assert first is not second
    cell("%nanwatch off")
    cell("train(1, healthy)")
    assert cell("trace").value is second


def test_armed_watch_says_nothing_of_a_cell_without_torch(cell: Cell) -> None:
    cell("%nanwatch model")
    ran = cell("1 + 1")
    assert ran.value == 2
    assert ran.shown == []
    assert ran.err == ""


@pytest.mark.parametrize("options", ["model -o trace", "on -o trace"])
def test_cells_that_only_look_leave_the_trace_of_an_armed_watch_alone(
    cell: Cell, options: str
) -> None:
    cell(f"import nanlab\n%nanwatch {options} -q --on-fault record")
    cell("train(2, faulty)")
    cell("first = trace")
    for look in (
        "trace.culprit; trace.stepper(); trace.underflow();",
        "torch.zeros(3) + 1",
        "model.weight.detach().isnan().any()",
    ):
        assert cell(look).success
    assert cell("trace is first and nanlab.last is first").value is True
    assert "sqrt" in cell("%nanwatch").text, "the last report is that of the training"


def test_an_error_in_an_armed_cell_without_the_model_is_explained_too(cell: Cell) -> None:
    cell("import nanlab\n%nanwatch model -o trace")
    cell("train(1, healthy)")
    ran = cell("torch.cat([torch.ones(2, 3), torch.ones(3, 2)])")
    assert isinstance(ran.error, RuntimeError)
    (shown,) = ran.shown
    assert shown.startswith("tensor 1 has size 2 where the others have 3")
    assert cell("len(trace.steps), nanlab.last is trace").value == (1, True)


def test_cells_that_were_run_again_cost_an_explanation_nothing(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: (forks.append(1), fork())[1])
    counts = []
    cell("import asyncio\nawait asyncio.sleep(0)")
    for _ in range(3):
        for _ in range(3):
            cell(SETUP)
            cell("train(1, healthy)")
        forks.clear()
        (shown,) = cell("%%nanwatch model\nmodel(torch.ones(4, 5))").shown
        assert "takes 2 features, its input has 5" in shown
        counts.append(len(forks))
    assert 0 < counts[2] < 2 * counts[0]  # it was thrice as much


def test_a_table_that_fails_leaves_a_cell_of_an_armed_watch_as_it_ran(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell("%nanwatch model")
    monkeypatch.setattr("nanlab.trace.frames.ops_frame", lambda recording: 1 / 0)
    ran = cell("train(2, healthy)")
    assert ran.value == 2
    assert "ZeroDivisionError" in ran.text
    assert "Traceback" not in ran.text


def test_nanwatch_at_the_end_of_an_armed_cell_reports_what_ran_before_it(cell: Cell) -> None:
    cell("%nanwatch model -o trace")
    (shown,) = cell("train(4, healthy);\n%nanwatch").shown
    assert "4 training steps" in shown
    assert cell("len(trace.steps)").value == 4


def test_off_at_the_end_of_an_armed_cell_reports_what_ran_before_it(cell: Cell) -> None:
    cell("%nanwatch model -o trace")
    ran = cell("train(4, healthy);\n%nanwatch off\ntrain(1, healthy);")
    (shown,) = ran.shown
    assert "4 training steps" in shown
    assert ran.out == "no longer watching\n"
    assert cell("len(trace.steps)").value == 4


def test_nanwatch_inside_a_watched_cell_leaves_its_watch_running(cell: Cell) -> None:
    ran = cell("%%nanwatch model -o trace\ntrain(1, healthy);\n%nanwatch\ntrain(1, healthy);")
    assert ran.out == "watching this cell; the report comes at its end\n"
    assert len(ran.shown) == 1


def test_unloading_says_that_an_armed_watch_ends(
    cell: Cell, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    cell("%nanwatch model")
    magics.unload_ipython_extension(shell)
    assert "no longer watching" in capsys.readouterr().err


def test_armed_watch_stops_a_following_cell_at_its_fault(cell: Cell) -> None:
    cell("%nanwatch model")
    ran = cell("train(1, faulty)")
    assert not ran.success
    assert "sqrt" in ran.text


def test_armed_watch_ends_with_one_line_when_its_model_is_gone(cell: Cell) -> None:
    cell("%nanwatch model")
    ran = cell("del model")
    ran = cell("3")
    assert ran.value == 3
    assert len(ran.err.strip().splitlines()) == 1
    assert "model" in ran.err
    assert cell("4").err == ""


def test_nanwatch_alone_shows_the_last_report_again(cell: Cell) -> None:
    report = cell("%%nanwatch model --on-fault record\ntrain(2, faulty);").shown
    assert cell("%nanwatch").shown == report


def test_nanwatch_alone_shows_the_last_run_of_a_with_block_too(cell: Cell) -> None:
    cell("%%nanwatch model\ntrain(1, healthy)")
    cell("import nanlab\nwith nanlab.watch(model):\n    train(7, healthy)")
    (shown,) = cell("%nanwatch").shown
    assert "7 training steps" in shown


def test_a_with_block_that_ends_early_says_so_in_a_notebook_too(cell: Cell) -> None:
    watched = "import nanlab\nwith nanlab.watch(model) as trace:\n    train(3, faulty)\n"
    ran = cell(watched + "print('after')")
    assert cell("trace.culprit.cause").value == "sqrt-at-zero"
    assert ran.out == "after\n"
    assert ran.err.startswith("nanlab: ") and "sqrt" in ran.err
    ran = cell("with nanlab.watch(model, steps=1):\n    train(3, healthy)")
    assert ran.err == (
        "nanlab: 1 training step watched, as asked; the rest of the block was not run\n"
    )


def test_nanwatch_alone_before_anything_says_what_to_type(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nanlab, "last", None)
    ran = cell("%nanwatch")
    assert ran.success
    assert ran.out == "nothing watched yet; try: %%nanwatch -o trace\n"


def test_off_is_a_word_and_a_model_of_that_name_can_be_watched_in_parentheses(cell: Cell) -> None:
    cell("off = model")
    assert "(off)" in cell("%nanwatch off").out
    assert "every following cell" in cell("%nanwatch (off)").out
    assert cell("%nanwatch off").out.startswith("no longer watching")


def test_off_when_nothing_is_armed_is_no_error(cell: Cell) -> None:
    ran = cell("%nanwatch off")
    assert ran.success
    assert ran.out == "nothing was being watched\n"


def test_quiet_shows_nothing_and_binds_the_trace(cell: Cell) -> None:
    ran = cell("%%nanwatch model -q -o trace\ntrain(1, healthy);")
    assert ran.text.strip() == ""
    assert cell("len(trace.steps)").value == 1


def test_several_models_are_watched_under_their_own_names(cell: Cell) -> None:
    cell("import types\ngame = types.SimpleNamespace(D=torch.nn.Linear(2, 1))\nG = model")
    code = "%%nanwatch game.D G -o trace\n"
    ran = cell(code + "(train(1, healthy), game.D(torch.ones(3, 2)).sum().backward());")
    assert ran.success, ran.error
    assert {"game.D", "G"} <= set(cell("list(trace.ops['module'])").value)
    assert {"G.weight", "G.bias"} <= set(cell("list(trace.parameters['parameter'])").value)


def test_a_run_is_saved_as_a_capsule_or_as_the_report(cell: Cell, tmp_path: Path) -> None:
    cell(f"%%nanwatch model -q --save {tmp_path / 'run.nanlab'}\ntrain(1, faulty)")
    trace = nanlab.load(tmp_path / "run.nanlab")
    assert trace.culprit.title == cell("nanlab.last.culprit.title").value
    cell(f"%%nanwatch model -q --save {tmp_path / 'run.html'}\ntrain(1, healthy)")
    assert "No harmful NaN" in (tmp_path / "run.html").read_text()
    ran = cell(f"%%nanwatch model -q --save {tmp_path / 'absent' / 'run'}\ntrain(1, healthy)")
    assert ran.success
    assert "was not saved" in ran.text


@pytest.mark.parametrize("expression", ["holder.net", "nets[0]", "nets[-1]"])
def test_model_may_be_an_attribute_or_an_index(cell: Cell, expression: str) -> None:
    cell("import types\nholder = types.SimpleNamespace(net=model)\nnets = [model]")
    ran = cell(f"%%nanwatch {expression}  # the model\ntrain(1, healthy)")
    assert ran.success
    assert ran.value == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%%nanwatch modle", ["modle", "not defined", "%%nanwatch model"]),
        ("%%nanwatch x", ["torch.nn.Module", "Tensor", "%%nanwatch model"]),
        ("%%nanwatch model.nothing", ["model.nothing", "no attribute", "%%nanwatch model"]),
        ("%%nanwatch print(1)", ["print(1)", "expected a variable"]),
        ("%%nanwatch model --stepz 3", ["--stepz", "%nanwatch?"]),
        ("%%nanwatch model --steps many", ["--steps", "'many'", "whole number"]),
        ("%%nanwatch model --steps 0", ["--steps", "whole number of 1 or more", "'0'"]),
        ("%%nanwatch model --keep -1", ["--keep", "'-1'"]),
        ("%%nanwatch model --on-fault explode", ["--on-fault", "explode", "stop", "record"]),
        ("%%nanwatch model --shadow float16", ["--shadow", "float16", "float32"]),
        ("%%nanwatch model -o 3x", ["-o", "'3x'", "variable name"]),
        ("%%nanwatch model -o class", ["-o", "'class'", "variable name"]),
        ("%%nanwatch model -o model", ["overwrite the model", "-o trace"]),
        ("%%nanwatch model 'open", ["quotation"]),
    ],
)
def test_misuse_is_one_line_that_says_what_to_type(cell: Cell, line: str, words: list[str]) -> None:
    ran = cell(f"{line}\nran = True")
    assert not ran.success
    assert ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    for word in words:
        assert word in ran.err
    assert not cell("'ran' in globals()").value, "a cell that cannot be watched does not run"


def test_doubled_watch_is_one_line_and_the_last_options_hold(cell: Cell) -> None:
    ran = cell("%%nanwatch model -o first\n%%nanwatch model -o second\ntrain(1, healthy)")
    assert ran.value == 1
    assert ran.err == "nanwatch: this cell was already watched; the last options apply\n"
    assert cell("%nanwatch model").err == ""
    assert (
        cell("%%nanwatch model\n%%nanwatch model\ntrain(1, healthy);").err.count("already watched")
        == 1
    )
    cell("%nanwatch off")
    assert cell("'first' in globals(), len(second.steps)").value == (False, 1)


def test_watch_inside_a_watched_cell_is_one_clear_line_and_not_a_second_report(cell: Cell) -> None:
    ran = cell(
        "%%nanwatch model\nimport nanlab\nwith nanlab.watch(model) as inner:\n    train(1, healthy)"
    )
    assert isinstance(ran.error, nanlab.NanlabError)
    assert "\n" not in str(ran.error)


@pytest.mark.parametrize(
    "top", ["%%time\n%%nanwatch model -o trace", "%%nanwatch model -o trace\n%%time"]
)
def test_time_works_above_and_below(cell: Cell, top: str) -> None:
    ran = cell(f"{top}\ntrain(2, healthy)")
    assert ran.success
    assert "Wall time" in ran.out
    assert cell("len(trace.steps)").value == 2


def test_cells_run_inside_a_watched_cell_belong_to_it(cell: Cell) -> None:
    ran = cell("%%nanwatch model -o trace\nget_ipython().run_cell('x.sqrt();')\nx.exp();")
    assert len(ran.shown) == 1, "one report, for the outer cell"
    assert cell("sorted({'sqrt', 'exp'} & set(trace.ops.op))").value == ["exp", "sqrt"]


def test_report_that_fails_is_a_note_and_the_value_stands(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise KeyError("missing")

    monkeypatch.setattr(magics.Trace, "report", broken)
    ran = cell("%%nanwatch model\ntrain(2, healthy)")
    assert ran.success
    assert ran.value == 2
    assert "the report failed (KeyError: 'missing')" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_report_whose_repr_fails_is_a_note_and_no_traceback(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise KeyError("missing")

    monkeypatch.setattr(magics.Trace, "report", lambda self: Broken())
    ran = cell("%%nanwatch model\ntrain(2, healthy)")
    assert ran.value == 2
    assert "the report failed (KeyError: 'missing')" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert "Traceback" not in ran.text


def test_error_of_the_user_is_explained_above_its_traceback(
    cell: Cell, shell: InteractiveShell
) -> None:
    order: list[str] = []
    write, publish = shell._showtraceback, shell.display_pub.publish
    vars(shell)["_showtraceback"] = lambda *exc: order.append("traceback")
    vars(shell.display_pub)["publish"] = lambda *args, **more: order.append("explanation")
    try:
        shell.run_cell("%%nanwatch model\nmodel(torch.ones(4, 5))")
        assert vars(shell)["_showtraceback"] is not write, (
            "what another tool has put in place stays"
        )
    finally:
        del vars(shell)["_showtraceback"], vars(shell.display_pub)["publish"]
    assert order == ["explanation", "traceback"]
    assert shell.display_pub.publish == publish


def test_cell_magic_below_the_first_line_watches_the_rest_and_says_where_it_belongs(
    cell: Cell,
) -> None:
    ran = cell("train(1, healthy)\n%%nanwatch model -o trace\ntrain(2, healthy)")
    assert ran.value == 2
    assert (
        ran.err
        == "nanwatch: %%nanwatch belongs on the first line of a cell: only the lines below it are"
        " watched\n"
    )
    assert cell("len(trace.steps)").value == 2


def test_arming_in_a_cell_watches_the_rest_of_it(cell: Cell) -> None:
    ran = cell("train(1, healthy)\n%nanwatch model -o trace\ntrain(2, healthy);")
    assert len(ran.shown) == 1
    assert cell("len(trace.steps)").value == 2
    cell("train(3, healthy)")
    assert cell("len(trace.steps)").value == 3


def test_arming_again_in_an_armed_cell_begins_a_watch_with_the_new_options(cell: Cell) -> None:
    cell("%nanwatch model -o first")
    assert cell("train(1, healthy)\n%nanwatch model -o second\ntrain(2, healthy);").success
    assert cell("len(first.steps), len(second.steps)").value == (1, 2)


def test_loading_binds_the_name_where_it_is_free_and_says_so(
    cell: Cell, shell: InteractiveShell
) -> None:
    assert cell("nanlab.last").success
    del shell.user_ns["nanlab"]
    assert "nanlab is imported" in cell("%reload_ext nanlab").out
    assert cell("nanlab.safe.sqrt(torch.ones(1)).item()").value == 1.0
    assert cell("nanlab = 'mine'\n%reload_ext nanlab").out == ""
    assert cell("nanlab").value == "mine"


def test_loading_twice_replaces(cell: Cell, shell: InteractiveShell) -> None:
    magics.load_ipython_extension(shell)
    assert shell.input_transformers_cleanup.count(cell_as_line) == 1
    assert (
        len([m for m in shell.Completer.custom_matchers if m.__module__.startswith("nanlab")]) == 1
    )
    ran = cell("%%nanwatch model\ntrain(1, healthy)")
    assert ran.value == 1
    assert ran.err == ""


def test_unloading_leaves_the_shell_as_it_was(cell: Cell, shell: InteractiveShell) -> None:
    cell("%nanwatch model")
    magics.unload_ipython_extension(shell)
    assert shell.find_line_magic("nanwatch") is None
    assert all(not f.__module__.startswith("nanlab") for f in shell.input_transformers_cleanup)
    assert all(
        not getattr(f, "__module__", "").startswith("nanlab")
        for fs in shell.events.callbacks.values()
        for f in fs
    )
    assert cell("train(1, healthy)").shown == []


def test_question_mark_explains_each_option(cell: Cell) -> None:
    text = cell("%nanwatch?").out
    for option in (
        "model",
        "--steps N",
        "--keep N",
        "--on-fault",
        "--shadow",
        "--budget N",
        "-o NAME",
        "-q",
        "off",
    ):
        assert option in text


@pytest.mark.parametrize(
    ("typed", "offered", "kept_back"),
    [
        ("%%nanwatch ", {"model", "--steps", "--on-fault"}, {"x"}),
        ("%%nanwatch mo", {"model"}, {"--steps"}),
        ("%nanwatch o", {"off", "on"}, {"model"}),
        ("%%nanwatch model --", {"--steps", "--keep", "--on-fault", "--shadow"}, {"model"}),
        ("%%nanwatch model --on-fault ", {"stop", "record"}, {"--steps", "model"}),
        ("%%nanwatch model --steps 3 --on", {"--on-fault"}, {"--steps"}),
        ("%%nanwatch holder.", {"holder.net"}, {"holder.number"}),
        ("print(mo", set(), {"--steps"}),
    ],
)
def test_tab_offers_options_their_values_and_models(
    cell: Cell, shell: InteractiveShell, typed: str, offered: set[str], kept_back: set[str]
) -> None:
    cell("import types\nholder = types.SimpleNamespace(net=model, number=3)")
    with provisionalcompleter():
        found = {completion.text for completion in shell.Completer.completions(typed, len(typed))}
    assert offered <= found
    assert not kept_back & found


def test_cell_transformer_leaves_other_cells_alone() -> None:
    for lines in (
        [],
        ["\n"],
        ["x = 1\n"],
        ["%%time\n", "%%nanwatch\n"],
        ["%%nanwatcher\n"],
        ["%%nanwatch?\n"],
    ):
        assert cell_as_line(lines) == lines


def test_statements_of_a_cell_that_call_a_step_again_are_steps_of_their_own(cell: Cell) -> None:
    """IPython makes each statement of a cell a code of its own."""
    cell(
        "import nanlab, torch\nfrom torch import nn\nmodel = nn.Linear(4, 1); opt ="
        " torch.optim.SGD(model.parameters(), 0.1)\ndef step():\n    opt.zero_grad()\n   "
        " model(torch.randn(3, 4)).mean().backward()\n    opt.step()\n"
    )
    for calls, steps in (
        ("step()\nstep()\nstep()", 3),
        ("for i in range(3): step()\nfor i in range(3): step()", 6),
    ):
        ran = cell(
            f"w = nanlab.watch(model); t = w.__enter__()\n{calls}\nw.__exit__(None, None, None)"
        )
        assert ran.success, ran.err
        assert cell("t.steps['optimizer_steps'].tolist()").value == [1] * steps


@pytest.mark.parametrize("watch", ["%%nanwatch model --on-fault record\n", ""])
def test_a_cell_that_meets_a_bad_parameter_names_the_watched_cell_that_left_it_so(
    cell: Cell, watch: str
) -> None:
    if not watch:
        cell("%nanwatch model --on-fault record")
    bad = "h = model(x)\n(h - h.detach()).pow(2).sum(1).sqrt().mean().backward()\noptimizer.step()"
    assert "left it so" not in cell(watch + bad).text
    (report,) = cell(watch + "model(x).pow(2).mean().backward()").shown
    assert "an earlier watched cell left it so: the derivative of sqrt" in report
    assert "(In[" in report.split("left it so")[1]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("loss = (model(x).sum() * 0).log()\nprint(loss.item())", "an infinity was born in log at"),
        (
            "with torch.no_grad():\n    z = model(x) * 0\n    (z / z).mean()",
            "a NaN was born in div",
        ),
        ("torch.tril(torch.ones(3, 3)).log().softmax(1)", "No harmful NaN or infinity."),
        ("print(torch.minimum(torch.tensor(float('inf')), model(x).sum()))", "No harmful NaN"),
        ("float('inf') > model(x).sum(), torch.tensor(float('nan'))", "No harmful NaN"),
        ("[x := x / x.sum() * 0 for _ in range(3)]", "but a NaN was born in div"),
    ],
)
def test_a_number_that_is_not_finite_is_told_of_though_no_gradient_is_bad(
    cell: Cell, code: str, told: str
) -> None:
    (shown,) = cell(f"%%nanwatch model\n{code}").shown
    assert told in shown


def test_cell_after_one_that_ended_before_its_update_has_its_report(cell: Cell) -> None:
    """The parameters of the step that was ended have no numbers."""
    cell(
        "head = torch.nn.Linear(4, 1)\nopt = torch.optim.SGD(head.parameters(), 0.1)\n"
        "w, y = torch.nn.Parameter(torch.ones(4)), torch.ones(4)"
    )
    ended = cell(
        "%%nanwatch head\nfor i in range(3):\n    opt.zero_grad()\n"
        "    (head(torch.ones(2, 4)).mean() / (i < 2)).log1p().backward()\n    opt.step()"
    )
    assert "In[" in ended.text
    after = cell("%%nanwatch\nfor i in range(2):\n    (w - y).square().sum().sqrt().backward()")
    assert "the report failed" not in after.text


@pytest.mark.parametrize("head", ["%%time\n%%nanwatch model", "%%nanwatch model\n%%time"])
def test_what_time_compiles_is_told_by_its_cell_and_its_line_there(cell: Cell, head: str) -> None:
    body = "for i in range(2):\n    loss = (model(x) * 0).sqrt().sum()\n    loss.backward()"
    assert not cell(f"{head}\n{body}").success
    found = nanlab.last.culprit
    assert found is not None
    assert re.fullmatch(r"In\[\d+\]", found.file) and found.line == 4
    assert found.source == "loss = (model(x) * 0).sqrt().sum()"
    assert found.fixes[0].edits
