"""A widget on a bare page: its own script, style and state, and a stand-in for the model."""

from __future__ import annotations

import base64
import json
from typing import Any

from playwright.sync_api import Page, Route

HOST = "http://nanlab.test"
DARK = """--jp-layout-color1: #111; --jp-ui-font-color1: rgba(255,255,255,1); --jp-ui-font-color2: rgba(255,255,255,.7);
--jp-border-color2: #424242; --jp-layout-color2: #424242; --jp-brand-color1: #2196f3; background: #111; color: #fff"""
HTML = """<!doctype html><html lang=en><meta charset=utf-8><title>nanlab</title><link rel=stylesheet href=/widget.css>
<body data-jp-theme-light="%(light)s" style="%(style)s"><main>
<h1 style="font-size:16px">nanlab</h1><div id=host></div></main>
<script type=module>
import widget from '/widget.js';
class Model {
  constructor(state) { this.state = state; this.handlers = {}; this.saved = []; this.changed = new Set(); }
  get(name) { return this.state[name]; }
  set(name, value) {
    if (this.state[name] === value) return;
    this.state[name] = value; this.changed.add(name);
    for (const f of this.handlers['change:' + name] ?? []) f();
  }
  save_changes() { for (const name of this.changed) this.saved.push([name, this.state[name]]); this.changed.clear(); }
  on(name, f) { (this.handlers[name] ??= []).push(f); }
  off(name, f) { this.handlers[name] = (this.handlers[name] ?? []).filter((g) => g !== f); }
}
window.mount = (state, binary) => {
  for (const [name, text] of Object.entries(binary))
    state[name] = new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const started = performance.now();
  window.model = new Model(state);
  window.leave = widget.render({ model: window.model, el: document.getElementById('host') });
  document.body.offsetHeight;
  return performance.now() - started;
};
window.module = import('/widget.js');
window.ready = true;
</script>"""


def state_of(widget: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The synchronised state that a page gets: what JSON carries, and the binary parts in
    base64."""
    state = widget.get_state()
    plain = {
        k: v
        for k, v in state.items()
        if not isinstance(v, bytes | memoryview) and not k.startswith("_") and k != "layout"
    }
    binary = {
        k: base64.b64encode(v).decode()
        for k, v in state.items()
        if isinstance(v, bytes | memoryview)
    }
    return json.loads(json.dumps(plain, allow_nan=False)), binary


def mount(page: Page, widget: Any, dark: bool = False) -> float:
    """Show the widget on an empty page; milliseconds until it was laid out."""
    style = f"margin:12px; {DARK}" if dark else "margin:12px; background:#fff"
    pages = {
        "/": (HTML % {"light": str(not dark).lower(), "style": style}, "text/html"),
        "/widget.js": (str(widget._esm), "text/javascript"),
        "/widget.css": (str(widget._css), "text/css"),
    }

    def answer(route: Route) -> None:
        body, kind = pages.get(route.request.url.removeprefix(HOST), ("", "text/plain"))
        route.fulfill(body=body, content_type=f"{kind}; charset=utf-8")

    page.unroute_all()
    page.route(f"{HOST}/**", answer)
    page.goto(f"{HOST}/")
    page.wait_for_function("() => window.ready")
    state, binary = state_of(widget)
    return float(page.evaluate("([state, binary]) => window.mount(state, binary)", [state, binary]))
