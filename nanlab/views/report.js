function render({ model, el }) {
  const get = (name) => model.get(name), uid = "nl" + Math.random().toString(36).slice(2, 8);
  const shell = h("div", { class: "nl-live" });
  el.append(shell);
  const set = (name, value) => { model.set(name, value); model.save_changes(); };
  let root, lines, ran, list, loosen, unheard;

  /** The page as it is now: at first without fixes, and again when they were tried. */
  function draw() {
    loosen?.();
    shell.innerHTML = get("html");  // made by nanlab, every text in it escaped
    root = shell.firstElementChild;
    lines = [...root.querySelectorAll(".nl-annotated .nl-line")];
    ran = lines.filter((line) => positionOf(line) >= 0);
    list = root.querySelector(".nl-annotated .nl-lines");
    loosen = keepKeys(root);
    addButtons();
    addLines();
    addMinimap();
    follow();
    describe();
  }
  function positionOf(node) { return Number(node.dataset.position); }
  /** Copies a text; a page that may not write to the clipboard lets the old command do it. */
  async function copy(button, text) {
    try { await navigator.clipboard.writeText(text); }
    catch {
      const area = h("textarea", { "aria-hidden": "true" });
      area.value = text;
      root.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1200);
  }
  const button = (label, onclick) => h("button", { type: "button", onclick }, label);
  const copier = (label, text) => { const made = button(label, () => copy(made, text)); return made; };
  function addButtons() {
    for (const fix of root.querySelectorAll(".nl-fix[data-copy]")) {
      const attempt = button("Try it", () => tryIt(fix, attempt));
      const buttons = h("span", { class: "nl-buttons" }, copier("Copy fix", fix.dataset.copy), fix.dataset.try ? attempt : "");
      fix.querySelector(".nl-fix-head").append(buttons);
      fix.append(h("div", { class: "nl-tried", role: "status" }));
    }
    const program = root.querySelector(".nl-program")?.textContent, issue = get("issue");
    if (issue) root.querySelector(".nl-more")?.append(h("div", { class: "nl-copies" },
      program ? copier("Copy as a minimal reproduction", program) : null, copier("Copy as issue", issue)));
  }
  function tryIt(fix, attempt) {
    attempt.disabled = true;
    fix.querySelector(".nl-tried").textContent = "Running the step again …";
    set("asked", [fix.dataset.try, get("asked")[1] + 1]);
    clearTimeout(unheard);
    unheard = setTimeout(() => noAnswer(fix), 4000);
  }
  /** The kernel says at once that it heard; a busy one says so later, and one that was restarted never. */
  function noAnswer(fix) {
    if (get("heard") === get("asked")[1]) return;
    fix.querySelector(".nl-tried").textContent = "No answer from the kernel. If it is busy, the answer comes later; if it was restarted, it no longer has this run: run the cell again.";
    for (const each of fix.querySelectorAll("button")) each.disabled = false;
  }
  function showTried() {
    const { key, html, cell } = get("tried");
    for (const block of root.querySelectorAll(`.nl-fix[data-try="${key}"]`)) {
      const pane = block.querySelector(".nl-tried");
      pane.innerHTML = html;  // made by nanlab, every text in it escaped
      if (cell) pane.append(copier("Copy the edited cell", cell));
      for (const each of block.querySelectorAll("button")) each.disabled = false;
    }
  }
  function addLines() {
    lines.forEach((line, i) => { line.id = `${uid}-${i}`; line.setAttribute("role", "option"); line.setAttribute("aria-selected", "false"); });
    if (list) {
      list.setAttribute("role", "listbox");
      list.setAttribute("aria-label", "Lines");
      list.tabIndex = 0;
      for (const other of list.querySelectorAll(".nl-file, .nl-gap")) other.setAttribute("role", "presentation");
      list.addEventListener("keydown", press);
    }
    link(root);
  }
  /** What a click in a part of the page selects, and which numbers lead to where they came from. */
  function link(part) {
    for (const each of part.querySelectorAll("[data-position]")) if (positionOf(each) >= 0) {
      each.classList.add("nl-can");
      each.addEventListener("click", () => { if (String(getSelection()) === "") set("selected", positionOf(each)); });
    }
    for (const each of part.querySelectorAll("[data-why]")) {
      const ask = () => set("clicked", [Number(each.dataset.why), each.dataset.which, get("clicked")[2] + 1]);
      for (const [name, value] of [["role", "button"], ["tabindex", 0], ["title", "Where did this come from?"]]) each.setAttribute(name, value);
      each.addEventListener("click", ask);
      each.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();  // Space would scroll
        ask();
      });
    }
  }
  /** A part of the page that the kernel has made anew. */
  function put(name, html) {
    const pane = root.querySelector(name);
    if (!pane || !html) return;
    pane.innerHTML = html;  // made by nanlab, every text in it escaped
    link(pane);
  }
  /** The minimap: a drag enlarges a part, a click selects a result; + and - do it by keys, arrows move the part. */
  function addMinimap() {
    const map = root.querySelector(".nl-minimap"), image = map?.querySelector("img");
    if (!image) return;
    const [left, right, top, bottom] = map.dataset.window.split(",").map(Number);
    const whole = right - left >= 1 && bottom - top >= 1;
    const frame = h("div", { class: "nl-frame", tabindex: "0", role: "group", "aria-label": "Minimap" }), drawn = h("div", { class: "nl-drawn" });
    image.replaceWith(frame);
    image.draggable = false;
    frame.append(image, drawn);
    map.append(whole ? h("div", { class: "nl-dim nl-legend" }, "Drag to zoom; a click selects a result.") : button("Whole run", () => show([0, 1, 0, 1])));
    const show = (window) => set("window", window);
    const inside = (share) => Math.min(1, Math.max(0, share));
    const point = (event) => {
      const box = image.getBoundingClientRect();
      return [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
    };
    const x = (share) => left + share * (right - left), y = (share) => top + share * (bottom - top);
    let from = null;
    frame.addEventListener("pointerdown", (event) => { from = point(event); frame.setPointerCapture(event.pointerId); });
    frame.addEventListener("pointermove", (event) => {
      if (!from) return;
      const to = point(event), percents = (i) => [Math.min(from[i], to[i]), Math.abs(to[i] - from[i])].map((share) => `${100 * share}%`);
      [[drawn.style.left, drawn.style.width], [drawn.style.top, drawn.style.height]] = [percents(0), percents(1)];
    });
    frame.addEventListener("pointercancel", () => { from = null; drawn.removeAttribute("style"); });
    frame.addEventListener("pointerup", (event) => {
      if (!from) return;
      const to = point(event), [a, b] = [from, to], width = image.clientWidth, height = image.clientHeight;
      from = null;
      drawn.removeAttribute("style");
      const dx = Math.abs(a[0] - b[0]), dy = Math.abs(a[1] - b[1]);
      if (dx * width < 5 && dy * height < 5) return set("pointed", [x(b[0]), y(b[1]), get("pointed")[2] + 1]);
      // a drag along one axis alone keeps the other whole
      const across = dx * width < 5 ? [0, 1] : [Math.min(a[0], b[0]), Math.max(a[0], b[0])];
      const down = dy * height < 5 ? [0, 1] : [Math.min(a[1], b[1]), Math.max(a[1], b[1])];
      show([...across.map(x), ...down.map(y)]);
    });
    frame.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const scaled = (a, b, by) => { const half = (b - a) * by / 2, mid = (a + b) / 2; return [inside(mid - half), inside(mid + half)]; };
      const moved = (a, b, by) => { const d = Math.max(-a, Math.min(1 - b, by * (b - a))); return [a + d, b + d]; };
      const acts = {
        "+": () => [...scaled(left, right, 0.5), top, bottom], "=": () => [...scaled(left, right, 0.5), top, bottom],
        "-": () => [...scaled(left, right, 2), ...scaled(top, bottom, 2)], "0": () => [0, 1, 0, 1],
        ArrowLeft: () => [...moved(left, right, -0.5), top, bottom], ArrowRight: () => [...moved(left, right, 0.5), top, bottom],
        ArrowUp: () => [left, right, ...moved(top, bottom, -0.5)], ArrowDown: () => [left, right, ...moved(top, bottom, 0.5)],
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      show(acts[event.key]());
    });
  }
  function remap() {
    const map = root.querySelector(".nl-minimap");
    if (!map || !get("minimap")) return;
    const focused = map.contains(document.activeElement);
    map.outerHTML = get("minimap");  // made by nanlab, every text in it escaped
    addMinimap();
    if (focused) root.querySelector(".nl-frame").focus();
  }
  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !ran.length) return;
    const at = ran.findIndex((line) => line.getAttribute("aria-selected") === "true");
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: ran.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const line = ran[Math.max(0, Math.min(ran.length - 1, to))];
    mark(line.dataset.place);
    set("selected", positionOf(line));
  }
  function mark(place) {
    for (const line of lines) line.setAttribute("aria-selected", String(line.dataset.place === place));
    const chosen = lines.find((line) => line.dataset.place === place);
    if (!chosen) return list?.removeAttribute("aria-activedescendant");
    list.setAttribute("aria-activedescendant", chosen.id);
    const top = chosen.offsetTop - list.offsetTop;
    if (top < list.scrollTop || top > list.scrollTop + list.clientHeight - 20) list.scrollTop = Math.max(0, top - list.clientHeight / 2);
  }
  /** The card of a cell that was run just now is brought into view, where its user is still at that cell. */
  function bring() {
    const cell = el.closest(".jp-Cell"), active = el.closest(".jp-Notebook")?.querySelector(".jp-Cell.jp-mod-active");
    if (cell && (active === cell || active === cell.nextElementSibling)) (root.querySelector(".nl-card") ?? root).scrollIntoView({ block: "nearest" });
  }
  const follow = () => mark(get("place"));
  const describe = () => put(".nl-chosen-line", get("line")), lead = () => put(".nl-whence", get("whence"));
  const soon = (action) => requestAnimationFrame(() => requestAnimationFrame(action));
  const redraw = () => { draw(); soon(bring); };
  const events = { "change:html": redraw, "change:place": follow, "change:line": describe, "change:tried": showTried, "change:whence": lead, "change:minimap": remap };
  const restore = replaceFallback(el, get("fallback"));
  for (const [name, action] of Object.entries(events)) model.on(name, action);
  draw();
  if (get("fresh")) {
    set("fresh", false);
    soon(bring);
  }
  return () => {
    clearTimeout(unheard);
    loosen();
    restore();
    for (const [name, action] of Object.entries(events)) model.off(name, action);
  };
}
export default { render };
