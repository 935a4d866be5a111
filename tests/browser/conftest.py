"""One JupyterLab and one page of Chromium for every test in the browser; a notebook for each."""

from __future__ import annotations

import ast
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
SETTINGS = {
    "apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "notebook-extension/tracker": {"scrollPastEnd": False},
}
FOLDERS = [
    f"JUPYTER{kind}_DIR"
    for kind in ("_CONFIG", "_DATA", "_RUNTIME", "LAB_SETTINGS", "LAB_WORKSPACES")
]
expect.set_options(timeout=15_000)


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab."""

    url: str
    token: str
    root: Path  # where its notebooks lie

    def api(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body).encode() if body else None
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")


@pytest.fixture(scope="package")
def chromium() -> str:
    """The path of the browser; without one a skip, and under CI a failure."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, filter(None, names))), None)
    if found:
        return found
    missing = "no Chromium found; install it (apt-get install chromium) or set CHROMIUM to its path"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="package")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    base = tmp_path_factory.mktemp("lab")
    made = Lab(f"http://127.0.0.1:{(port := free_port())}", secrets.token_hex(16), base / "root")
    made.root.mkdir()
    env = os.environ | {name: str(base / name) for name in [*FOLDERS, "IPYTHONDIR", "MPLCONFIGDIR"]}
    for plugin, values in SETTINGS.items():
        file = base / "JUPYTERLAB_SETTINGS_DIR/@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
    ]
    command += [
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={made.root}",
        "--LabApp.news_url=",
    ]
    command += [f"--IdentityProvider.token={made.token}", "--LabApp.expose_app_in_browser=True"]
    command += ["--LabApp.extension_manager=readonly"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = base / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_until_up(made, server, log)
        yield made
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)  # its kernels too
            server.wait(20)


def wait_until_up(
    lab: Lab, server: subprocess.Popen[bytes], log: Path, seconds: float = 60
) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            lab.api("GET", "status")
        except OSError:
            assert server.poll() is None, f"JupyterLab ended:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < end, f"JupyterLab did not answer:\n{log.read_text()[-3000:]}"
            time.sleep(0.1)
        else:
            return


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    # ends with this folder: Playwright keeps an event loop, which no `await` of other tests may meet
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture(scope="package")
def page(browser: Browser, lab: Lab) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    outside: list[str] = []
    context.route(
        lambda url: url.startswith("http") and not url.startswith(lab.url),
        lambda route: (outside.append(route.request.url), route.abort()),
    )
    page.goto(f"{lab.url}/lab?token={lab.token}&reset", wait_until="commit")
    page.wait_for_function("() => window.jupyterapp?.restored", timeout=60_000)
    page.evaluate("() => jupyterapp.restored.then(() => jupyterapp.shell.collapseLeft())")
    yield page
    assert outside == [], "nothing may ask for an address outside"


@pytest.fixture(scope="package")
def kernel(lab: Lab) -> str:
    """One warm kernel for every notebook: a fresh one costs 1 to 2.5 seconds."""
    return str(lab.api("POST", "kernels", {"name": "python3"})["id"])


class Notebook:
    """A notebook open in the page, on the shared kernel."""

    def __init__(
        self, lab: Lab, page: Page, kernel: str, name: str, cells: tuple[str, ...]
    ) -> None:
        kept = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
        kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nb = {  # written without nbformat, whose import takes seconds
            "cells": [kept | {"id": f"cell-{i}", "source": cell} for i, cell in enumerate(cells)],
            "metadata": {"kernelspec": kernelspec},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (lab.root / name).write_text(json.dumps(nb))
        self.page = page
        self.path = lab.root / name
        page.evaluate(
            "a => jupyterapp.commands.execute('docmanager:open', a).then(() => 1)",
            {"path": name, "factory": "Notebook", "kernel": {"id": kernel}},
        )
        page.wait_for_function(
            """p => { const w = jupyterapp.shell.currentWidget;
                return w?.context?.path === p && w.context.isReady
                    && w.context.sessionContext?.session?.kernel?.status === 'idle' }""",
            arg=name,
            timeout=60_000,
        )
        self.id = page.evaluate("() => jupyterapp.shell.currentWidget.id")
        self.root = page.locator(f"[id='{self.id}']")

    def js(self, body: str, argument: object = None) -> Any:
        """Run JavaScript in the page: `w` is the notebook's widget, `a` the argument."""
        widget = f"[...jupyterapp.shell.widgets('main')].find(w => w.id === '{self.id}')"
        return self.page.evaluate(f"async a => {{ const w = {widget}; {body} }}", argument)

    def run_all(self) -> bool:
        """Run every cell; False if one failed and the rest was left."""
        return bool(self.js("return await jupyterapp.commands.execute('notebook:run-all-cells')"))

    def run(self, index: int) -> bool:
        """Run one cell; False if it failed."""
        body = """w.content.deselectAll(); w.content.activeCellIndex = a; w.content.mode = 'command';
                  return await jupyterapp.commands.execute('notebook:run-cell')"""
        return bool(self.js(body, index))

    def out(self, index: int) -> Locator:
        """The output area of a cell."""
        return self.root.locator(
            f".jp-Cell[data-windowed-list-index='{index}'] .jp-Cell-outputArea"
        )

    def py(self, expression: str = "None", code: str = "") -> Any:
        """Value of an expression in the kernel, over the page's own connection; the notebook does
        not change."""
        # a request that waits behind a cell that fails is aborted with it, unread; the status may
        # be idle by then, since a widget's messages are served beside the cell
        body = """const kernel = w.context.sessionContext.session.kernel;
            for (;;) {
                const {content} = await kernel.requestExecute({code: a[0], silent: true,
                    store_history: false, user_expressions: {v: a[1]}}).done;
                if (content.status !== 'aborted')
                    return content.user_expressions?.v ?? content;
                await new Promise(go => setTimeout(go, 20));
            }"""
        value = self.js(body, [code, f"__import__('json').dumps({expression})"])
        assert value["status"] == "ok", value
        return json.loads(ast.literal_eval(value["data"]["text/plain"]))

    def until(self, expression: str, value: Any, seconds: float = 60) -> None:
        """Wait until an expression in the kernel has a value: what a widget reports is served
        beside the cells."""
        end = time.monotonic() + seconds
        while (found := self.py(expression)) != value:
            assert time.monotonic() < end, f"{expression} is {found!r}, not {value!r}"
            time.sleep(0.05)

    def close(self) -> None:
        """Leave the kernel as a new one: no variables, no widgets, no extension."""
        ip = "get_ipython()"
        self.py(
            code=(
                f"{ip}.extension_manager.unload_extension('nanlab'); {ip}.run_line_magic('reset',"
                " '-f')\nimport ipywidgets; ipywidgets.Widget.close_all()"
            )
        )
        self.js("await w.context.save(); w.dispose()")


@pytest.fixture
def notebook(
    lab: Lab, page: Page, kernel: str, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Notebook]]:
    """Make and open a notebook of these code cells: `nb = notebook("x = 1", "x")`."""
    made: list[Notebook] = []

    def make(*cells: str) -> Notebook:
        name = re.sub(r"\W+", "_", request.node.name)[:50] + f"_{len(made)}.ipynb"
        made.append(Notebook(lab, page, kernel, name, cells))
        return made[-1]

    yield make
    for opened in reversed(made):
        opened.close()


@pytest.fixture
def theme(page: Page) -> Iterator[Callable[[str], None]]:
    """Switch JupyterLab to the `Light` or `Dark` theme; light again afterwards."""

    def switch(name: str) -> None:
        page.evaluate(
            "t => jupyterapp.commands.execute('apputils:change-theme', {theme: t})",
            f"JupyterLab {name}",
        )
        page.wait_for_function(
            "l => document.body.dataset.jpThemeLight === l", arg=str(name == "Light").lower()
        )

    yield switch
    switch("Light")
