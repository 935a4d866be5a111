"""Each notebook runs from top to bottom, says what it should, and leaves something to look at
without a kernel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import asked_for

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))
SECONDS = 60  # on two cores that have nothing else to do
AT_ONCE = 2  # kernels

# Words of the culprits' sentences and of the proofs; a figure that may differ between machines is
# left out.
SAYS = {
    "01-first-nan": [
        "the derivative of x**0.333333 at",
        "return nanlab.safe.pow(mean, 1 / self.p)",
        "<nanlab.Replay of step 0: identical, loss",
        "<nanlab.Replay of step 0: changed, loss",
        "culprit: None",
    ],
    "02-square-roots-and-cosines": [
        "were divided by a norm of zero",
        "though `nan_to_num` hid the bad value from the loss",
        "the derivative of sqrt at",
        "EpsilonAdvice(",
        "culprit: None",
    ],
    "03-half-precision": [
        "log of",
        "sum overflows float16",
        "the parameter 2.bias holds 10 NaNs",
        "finite_at",
        "loss scale 2^11",
        "eps=1e-08 of Adam is zero in float16",
        "culprit: None",
    ],
    "04-contrastive-blow-up": ["is on its way out of float16", "culprit: None"],
    "05-gradient-clipping": [
        "the weights diverge: head.weight grew from",
        "gradients are clipped before they are unscaled",
        "usual, in use",
        "clipping spread the bad gradient of gate to 10 other parameters",
        "verified  return super().forward(days) + torch.sqrt(self.gate + 1e-9)",
        "culprit: None",
    ],
    "06-error-clinic": [
        "the graph was cut by torch.as_tensor(list) at In[5]:3",
        "backward at In[10]:6 reached embedding",
        "entry 0 has shape [7] and entry 1 has shape [5]",
        "index 93 at position [1, 5] is outside of the 93 rows of the embedding",
        "the file was saved from cuda",
        "returned NaN because of sqrt",
    ],
    "07-backward-step-by-step": [
        "Backward stepper: 154 nodes, all finite",
        "transformer.h.0.mlp.act  mul",
        "first bad one LogSoftmaxBackward0",
        "rows that are -inf throughout",
        "verified  scores = scores.masked_fill(padding[:, None, :], torch.finfo(scores.dtype).min)",
        "verified: mask with the dtype's lowest number",
        "changed, loss",
        "culprit: None",
    ],
    "08-rules-of-your-own": [
        "warning dead-relu - all 3200 values that leave the ReLU 1 are zero",
        "['dead-relu']\n[]",
        "the learned temperature is 0",
    ],
    "09-a-long-run": [
        "weights that are left: 0",
        "were divided by a standard deviation of zero",
        "Guarded(step=4216, identical=True, reason='')",
        "weights finite: True",
        "guarded: 1,784 steps",
        "the same bits: True",
    ],
}


def builder() -> Any:
    """The module notebooks/build.py."""
    spec = importlib.util.spec_from_file_location("notebooks_build", NOTEBOOKS / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebooks being executed that a test asks for, from copies in a folder of their own, two
    kernels at a time."""
    build = builder()
    folder = tmp_path_factory.mktemp("notebooks")
    names = asked_for(request, "name", NAMES)

    def run(name: str) -> tuple[Any, float]:
        copy = shutil.copy(NOTEBOOKS / f"{name}.ipynb", folder)
        begin = time.perf_counter()
        return build.execute(Path(copy), folder), time.perf_counter() - begin

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(run, name) for name in names}


def outputs(
    notebook: Any,
) -> list[tuple[Any, Any]]:
    return [
        (cell, output)
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]


def text_of(notebook: Any) -> str:
    """All that the outputs say as plain text."""
    parts = [
        output.get("text", "")
        or output.get("evalue", "")
        or output.get("data", {}).get("text/plain", "")
        for _, output in outputs(notebook)
    ]
    return "\n".join(parts)


def check_static(notebook: Any) -> None:
    """Every widget has a picture before it and words beside it; a file without its state shows
    these."""
    for cell, output in outputs(notebook):
        data = output.get("data", {})
        if "application/vnd.jupyter.widget-view+json" in data:
            assert data.get("text/html") and data.get("text/plain"), cell.source
            others = [
                o.data["text/html"]
                for o in cell.outputs
                if o is not output and "text/html" in o.get("data", {})
            ]
            assert any("<img" in html or "<table" in html for html in others), cell.source
    assert "widgets" not in notebook.metadata


def check_errors(notebook: Any) -> None:
    """Errors are in the cells meant to fail; that these say what they should is a matter of their
    words."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            failed = any(output.output_type == "error" for output in cell.outputs)
            assert not failed or "raises-exception" in cell.metadata.get("tags", []), cell.source


@pytest.mark.examples(every=5)
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_within_a_minute_and_says_what_it_is_meant_to_say(
    name: str, runs: dict[str, Future[tuple[Any, float]]]
) -> None:
    notebook, seconds = runs[name].result()
    check_errors(notebook)
    check_static(notebook)
    said = text_of(notebook)
    assert "nanlab itself failed" not in said
    assert [words for words in SAYS.get(name, []) if words not in said] == []
    assert seconds < SECONDS * max(1.0, os.getloadavg()[0] / AT_ONCE), (
        "a tutorial takes less than a minute"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_with_its_outputs_and_without_widget_state(name: str) -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "%load_ext nanlab" in code[0].source
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    check_errors(notebook)
    check_static(notebook)
    said = text_of(notebook)
    assert [words for words in SAYS.get(name, []) if words not in said] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_names_no_place_of_the_machine_it_was_made_on(name: str) -> None:
    written = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    assert [
        place
        for place in ("/tmp/", "/home/", "/root/", "site-packages", " at 0x")
        if place in written
    ] == []


def test_notebooks_of_the_users_own_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = builder()
    for name in ("01-first-nan.ipynb", "Untitled.ipynb"):
        shutil.copy(NOTEBOOKS / "01-first-nan.ipynb", tmp_path / name)
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert [path.name for path in build.chosen([])] == ["01-first-nan.ipynb"]
