"""Every code block of the pages that people read is run, and what they show is what happens."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
RUNNABLE = {"python", "ipython", "console", "text"}
# commands of make that are run for real: the others install, measure or open something
SAFE = {"help"}
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each code block of a page."""
    return re.findall(
        r"^```(\S*)\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def pairs(page: str) -> list[tuple[str, str]]:
    """(code, shown) of each Python block of a page; shown is the `text` block right below it, or
    nothing."""
    found = blocks(page)
    below = [*found[1:], ("", "")]
    return [
        (code, text if kind == "text" else "")
        for (name, code), (kind, text) in zip(found, below, strict=True)
        if name == "python"
    ]


def normalised(text: str) -> list[str]:
    """The words of a text; of its numbers three digits count, and minus zero is zero."""
    return NUMBER.sub(
        lambda m: f"{float(m[0].replace(',', '')):.3g}", text.replace("-0.0 ", "0.0 ")
    ).split()


def ran(code: str, place: Path, names: dict[str, Any]) -> str:
    """What a program prints that lies in a file, so that its lines can be told."""
    place.write_text(code, encoding="utf-8")
    linecache.checkcache(str(place))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(place.parent):
        exec(compile(code, str(place), "exec"), names)
    return printed.getvalue()


@pytest.fixture(scope="module")
def session(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Any], list[tuple[str, str]], Path]:
    """The Python blocks of the README, run in order in one namespace: the names, (printed, shown)
    of each, the folder."""
    folder, names = tmp_path_factory.mktemp("readme"), {"__name__": "__main__"}
    said = [(ran(code, folder / "train.py", names), shown) for code, shown in pairs("README.md")]
    return names, said, folder


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    yield shell
    shell.run_line_magic("reload_ext", "nanlab")
    shell.run_line_magic("unload_ext", "nanlab")
    InteractiveShell.clear_instance()


def test_every_block_is_of_a_kind_that_is_run() -> None:
    kinds = {page: [kind for kind, _ in blocks(page)] for page in PAGES}
    assert {kind for found in kinds.values() for kind in found} <= RUNNABLE
    assert kinds["README.md"].count("python") >= 2
    assert not any(
        "```" in line and not line.startswith("```")
        for page in PAGES
        for line in (ROOT / page).read_text().splitlines()
    )
    assert not any(
        re.match(r" {4}\S", line)
        for page in PAGES
        for line in (ROOT / page).read_text().splitlines()
        if not blocks(page)
    )


def test_python_blocks_print_what_is_shown_below_them(
    session: tuple[dict[str, Any], list[tuple[str, str]], Path],
) -> None:
    _, said, _ = session
    assert said[0][1], "the README opens with a program and its output"
    for printed, shown in said:
        assert normalised(printed) == normalised(shown)


def test_python_blocks_leave_behind_what_they_promise(
    session: tuple[dict[str, Any], list[tuple[str, str]], Path],
) -> None:
    names, _, folder = session
    assert names["trace"].culprit.cause == "sqrt-at-zero"
    assert all(p.isfinite().all() for p in names["model"].parameters()), (
        "the block ended before the optimizer's step"
    )
    # a name
    page = (
        (folder / "report.html")
        .read_text(encoding="utf-8")
        .replace("http://www.w3.org/2000/svg", "")
    )
    assert "the derivative of" in page or "The derivative of" in page
    assert "http://" not in page
    assert "https://" not in page


def test_cells_of_the_readme_run_in_a_notebook(shell: InteractiveShell) -> None:
    cells = [text for kind, text in blocks("README.md") if kind == "ipython"]
    assert len(cells) == 3, "one block a cell"
    said, stopped = [], []
    for cell in cells:
        with capture_output() as captured:
            result = shell.run_cell(cell)
        stopped.append(type(result.error_in_exec).__name__)
        said.append(
            " ".join([captured.stdout, *(o.data.get("text/plain", "") for o in captured.outputs)])
        )
    assert stopped == ["NoneType", "FaultFound", "NoneType"]
    assert "the derivative of sqrt at 3 zeros" in said[1]
    assert "step 3" in said[1]
    assert "Backward stepper" in said[2]


def test_cells_of_the_readme_pasted_into_one_find_the_fault_too(shell: InteractiveShell) -> None:
    cells = [text for kind, text in blocks("README.md") if kind == "ipython"]
    with capture_output() as captured:
        shell.run_cell("\n".join(cells))
    assert "%%nanwatch belongs on the first line of a cell" in captured.stderr
    assert shell.user_ns["trace"].culprit.cause == "sqrt-at-zero"


def test_every_option_of_the_magic_is_named_and_no_other(shell: InteractiveShell) -> None:
    shell.run_line_magic("load_ext", "nanlab")
    magic = shell.magics_manager.magics["line"]["nanwatch"]
    real = {string for action in magic.parser._actions for string in action.option_strings}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(--?[a-z-]+)", text[text.index("Options:") :].split("\n\n")[0]))
    assert named
    assert named <= real
    assert all(
        named & set(action.option_strings)
        for action in magic.parser._actions
        if action.option_strings
    )


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_console_blocks_name_commands_that_make_knows(page: str) -> None:
    lines = [
        line.split("#")[0].strip()
        for kind, text in blocks(page)
        if kind == "console"
        for line in text.splitlines()
    ]
    assert lines
    assert all(re.fullmatch(r"make [a-z]+( [A-Z]+=[a-z0-9]+)?", line) for line in lines), lines
    for line in [*lines, *(f"make {name}" for name in sorted(SAFE))]:
        dry = [] if line.split()[1] in SAFE else ["--dry-run"]
        done = subprocess.run(
            [*line.split(), *dry], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_make_alone_lists_every_command_with_what_it_does() -> None:
    done = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    listed = dict(re.findall(r"^  make (\w+) +(\S.*)$", done.stdout, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert sorted(listed) == sorted(phony[1].split())


def test_every_public_name_the_readme_mentions_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`nanlab\.(\w+)", text))
    assert names >= {"safe", "advise_eps", "compare", "explain"}
    assert all(hasattr(nanlab, name) for name in names)
    doors = set(re.findall(r"`trace\.(\w+)", text))
    assert all(hasattr(nanlab.Trace, door) for door in doors)
    operators = re.search(r"`nanlab.safe` \| (.+?), \.\.\.", text)
    assert operators
    assert all(hasattr(nanlab.safe, name) for name in re.findall(r"`(\w+)`", operators[1]))


def test_every_picture_of_the_readme_exists_for_light_and_dark() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    light, dark = (
        re.findall(r'<img alt="[^"]{20,}" src="([^"]+)"', text),
        re.findall(r'srcset="([^"]+)"', text),
    )
    assert len(light) == 3
    assert [picture.replace("light", "dark") for picture in light] == dark
    assert all((ROOT / picture).is_file() for picture in light + dark)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file_of_the_repository(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (ROOT / page).parent.joinpath(target).exists(), (
            target
        )


def rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_the_table_of_tools_is_the_one_that_the_benchmark_printed() -> None:
    readme = rows((ROOT / "README.md").read_text(encoding="utf-8"))
    made = rows((ROOT / "benchmarks/results/tools.md").read_text(encoding="utf-8"))
    assert len(made) >= 6
    assert [row for row in made if row not in readme] == []


def test_the_costs_are_the_figures_that_were_measured() -> None:
    made = rows((ROOT / "benchmarks/results/overhead-cpu.md").read_text(encoding="utf-8"))[2:]
    times = {model: float(figures[1]) for model, *figures in made}
    tiny = times.pop("MLP")
    told = (
        f"{min(times.values()):.1f} to {max(times.values()):.1f} times for models whose operations"
        f" are large, {tiny:.1f} times"
    )
    assert told in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
