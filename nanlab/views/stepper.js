const ROW = 24;
const WORDS = ["born", "turned", "carried", "intended", "healed", "ok"];
const isBad = (status) => status < 3;

/** Module of each node as path parts; a leaf without a module belongs to the node before it. */
function modulePaths(graph) {
  const parts = graph.modules.map((name) => (name ? name.split(".") : []));
  const paths = [];
  graph.module.forEach((m, i) => {
    const adopt = i && !parts[m].length && graph.names[graph.name[i]] === "AccumulateGrad";
    paths.push(adopt ? paths[i - 1] : parts[m]);
  });
  return paths;
}

/** Rows lo..hi-1 as items: a node, or a group of the nodes of one module that ran in one go. */
export function nest(paths, status, lo = 0, hi = paths.length, depth = 0, parent = null) {
  const items = [];
  for (let i = lo; i < hi; ) {
    const key = paths[i][depth];
    let j = i + 1;
    while (j < hi && paths[j][depth] === key) j++;
    if (key === undefined) for (; i < j; i++) items.push({ lo: i, hi: i + 1, parent, level: 0, children: null });
    else items.push(group(paths, status, i, j, depth, parent));
    i = j;
  }
  return items;
}
function group(paths, status, lo, hi, depth, parent) {
  if (hi - lo === 1) return { lo, hi, parent, level: 0, children: null };
  let deep = depth + 1;
  const same = () => { const key = paths[lo][deep]; if (key === undefined) return false;
    for (let i = lo + 1; i < hi; i++) if (paths[i][deep] !== key) return false; return true; };
  while (same()) deep++;
  let worst = lo;
  for (let i = lo + 1; i < hi; i++) if (status[i] < status[worst]) worst = i;
  const item = { lo, hi, parent, level: 0, label: paths[lo].slice(0, deep).join("."), worst, open: false };
  item.children = nest(paths, status, lo, hi, deep, item);
  return item;
}
export function visible(items, out = [], level = 1) {
  for (const item of items) {
    item.level = level;
    out.push(item);
    if (item.children && item.open) visible(item.children, out, level + 1);
  }
  return out;
}
/** Groups of groups open while the list stays short; runs of one module stay closed. */
function openFirst(roots) {
  for (let shown = roots.length; ; ) {
    const closed = visible(roots).filter((i) => i.children && !i.open && i.children.some((c) => c.children));
    const next = closed.sort((a, b) => b.hi - b.lo - (a.hi - a.lo))[0];
    if (!next || shown + next.children.length > 32) return;
    next.open = true;
    shown += next.children.length;
  }
}

/** Lanes of the rows as in a commit graph. edges: pairs of rows a < b; the farthest keeps the lane. Headings take none. */
export function lanes(count, edges, heading = () => false) {
  const next = Array.from({ length: count }, () => []), lane = new Int32Array(count), waits = new Map(), free = [];
  let width = 0;
  for (const [a, b] of edges) next[a].push(b);
  const take = () => { if (!free.length) return width++; free.sort((x, y) => y - x); return free.pop(); };
  for (let v = 0; v < count; v++) {
    if (heading(v)) continue;
    const at = waits.has(v) ? waits.get(v) : take();
    waits.delete(v);
    lane[v] = at;
    let straight = false;
    for (const b of next[v].sort((x, y) => y - x)) {
      if (waits.has(b)) continue;
      waits.set(b, straight ? take() : at);
      straight = true;
    }
    if (!straight) free.push(at);
  }
  return { lane, width };
}

function render({ model, el }) {
  const uid = "nl" + Math.random().toString(36).slice(2, 8);
  let graph, paths, roots, rows, rowOf, edges, shownEdges, layout, timer = null, laneStep = 12, ours = false;
  const get = (name) => model.get(name);
  const count = () => graph.node?.length ?? 0;
  const button = (label, action, title) => h("button", { type: "button", onclick: action, title }, label);
  const play = button("Play", () => (timer ? stop() : start()), "Go on by itself");
  play.setAttribute("aria-pressed", "false");
  const buttons = { culprit: button("Culprit", () => toCulprit(), "Where the fault began"), bad: button("First bad", () => show(firstBad(0)), "The first node that is not finite"),
    back: button("Previous", () => go(get("position") - 1)), on: button("Next", () => go(get("position") + 1)) };
  const slider = h("input", { type: "range", min: 0, "aria-label": "Backward step", oninput: () => go(Number(slider.value)) });
  const where = h("span", { class: "nl-where" });
  const search = h("input", { type: "search", "aria-label": "Find node", placeholder: "Find node  ( / )", oninput: () => find(0, 0) });
  const hits = h("span", { class: "nl-dim nl-hits", role: "status" });
  const colour = choice("Colour by", ["status", "gain", "underflow"].map((w) => [w, w]), () => draw());
  const step = choice("Training step", [], () => pick()), pass = choice("Backward pass", [], () => pick(true));
  const lanesAt = s("svg", { class: "nl-lanes", "aria-hidden": "true" }), list = h("div", { class: "nl-rows", role: "none" });
  const tree = h("div", { class: "nl-tree", role: "tree", tabindex: 0, "aria-label": "Backward graph", onscroll: () => draw() }, list);
  let wide = 520;  // of the pictures: read when the size changes, not with each step
  let tall = 460;  // of the tree, when the chosen row was last brought into view
  const pane = h("div", { class: "nl-detail", role: "region", "aria-label": "Selected node", tabindex: 0 });
  const origin = h("div", { class: "nl-origin", role: "note", "aria-label": "Origin" });
  const root = h("div", { class: "nanlab nl-stepper" }, origin,
    h("div", { class: "nl-bar-of-controls" }, buttons.culprit, buttons.bad, buttons.back, buttons.on, play, h("span", { class: "nl-slide" }, slider, where)),
    h("div", { class: "nl-bar-of-controls" }, search, hits, colour.label, step.label, pass.label),
    h("div", { class: "nl-panes" }, tree, pane));
  el.append(root);

  /** Where the fault began, in another pass too: the kernel selects it. */
  function toCulprit() {
    const { chosen, position } = get("culprit");
    if (chosen === get("chosen")) return show(position);
    stop();
    model.set("wanted", (get("wanted") ?? 0) + 1);
    model.save_changes();
  }
  function choice(name, options, action) {
    const select = h("select", { onchange: action }, options.map(([value, text]) => h("option", { value }, text)));
    return { select, label: h("label", {}, name, select) };
  }
  function load() {
    graph = get("graph");
    paths = modulePaths({ modules: [], module: [], ...graph });
    roots = nest(paths, graph.status ?? []);
    const view = get("edges");
    const flat = view?.byteLength ? new Int32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)) : [];
    edges = Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i], flat[2 * i + 1]]);
    openFirst(roots);
    slider.max = Math.max(0, count() - 1);
    fillPasses();
    arrange();
    if (count() && isBad(graph.status[get("position")])) reveal(get("position"));
    select();
  }
  /** A new pass arrives in one message, and its position may be heard of before its nodes. */
  const stale = () => graph !== get("graph");
  function fillPasses() {
    const all = get("passes"), now = all[get("chosen")];
    if (!now) return;
    const same = (step) => all.filter((p) => p.step === step);
    const texts = (each) => `${same(each.step).indexOf(each) + 1} of ${same(each.step).length}, ${plural(each.nodes, "node")}`
      + (isBad(WORDS.indexOf(each.worst)) ? ", bad" : "");
    const put = (select, pairs, value) => { select.replaceChildren(...pairs.map(([v, t]) => h("option", { value: v }, t)));
      select.value = value; select.disabled = pairs.length < 2; };
    const steps = [...new Set(all.map((p) => p.step))];
    const mark = (n) => (all.some((p) => p.step === n && isBad(WORDS.indexOf(p.worst))) ? `${n}, bad` : `${n}`);
    put(step.select, steps.map((n) => [n, mark(n)]), now.step);
    put(pass.select, same(now.step).map((p) => [p.backward_pass, texts(p)]), now.backward_pass);
    pass.label.hidden = same(now.step).length < 2;
  }
  function pick(samePass) {
    stop();
    const at = get("passes").findIndex((p) => p.step === Number(step.select.value)
      && (!samePass || p.backward_pass === Number(pass.select.value)));
    model.set("chosen", at);
    model.save_changes();
  }
  const isHeading = (r) => rows[r].children && rows[r].open;
  /** After a group was opened or closed: which items are seen, and the lanes between them. */
  function arrange() {
    rows = visible(roots);
    rowOf = new Int32Array(count());
    rows.forEach((item, r) => { if (!item.children || !item.open) rowOf.fill(r, item.lo, item.hi); });
    const seen = new Set(), n = rows.length;
    shownEdges = [];
    for (const [a, b] of edges) {
      const from = rowOf[a], to = rowOf[b], key = from * n + to;
      if (from < to && !seen.has(key)) { seen.add(key); shownEdges.push([from, to]); }
    }
    layout = lanes(n, shownEdges, isHeading);
    laneStep = Math.min(12, 84 / Math.max(1, layout.width));
    list.style.height = `${n * ROW}px`;
  }
  function draw() {
    const first = Math.max(0, Math.floor(tree.scrollTop / ROW) - 4);
    const last = Math.min(rows.length, Math.ceil((tree.scrollTop + (tree.clientHeight || 460)) / ROW) + 4);
    const chosen = rowOf[get("position")];
    root.classList.toggle("nl-by-status", colour.select.value === "status");
    list.replaceChildren(lanesAt, ...rows.slice(first, last).map((item, i) => line(item, first + i, first + i === chosen)));
    drawLanes(first, last, chosen);
    if (count()) tree.setAttribute("aria-activedescendant", `${uid}-${chosen}`);
  }
  function line(item, r, chosen) {
    const node = item.children ? item.worst : item.lo, status = WORDS[graph.status[node]], nodes = item.hi - item.lo;
    const name = item.children ? item.label : graph.names[graph.name[node]], served = item.children ? "" : parameter(node);
    const inside = chosen && item.children && !item.open ? `${get("position") - item.lo + 1} of ${nodes}` : plural(nodes, "node");
    const note = item.children ? inside : served || place(node);
    const out = h("div", { class: `nl-row nl-${status}${chosen ? " nl-chosen" : ""}`, role: "treeitem", id: `${uid}-${r}`,
      "aria-level": item.level, "aria-selected": String(chosen), "aria-setsize": -1, "aria-posinset": r + 1,
      "aria-expanded": item.children ? String(item.open) : null, onclick: (e) => clicked(e, item) },
      h("span", { class: "nl-twist" }, item.children ? (item.open ? "▾" : "▸") : ""), h("span", { class: "nl-name", title: item.children ? name : null }, h("bdi", { dir: "ltr" }, name)),
      h("span", { class: "nl-note nl-dim" }, note), h("span", { class: "nl-value", title: valueTitle(item) }, value(item, node, status)));
    out.style.cssText = `top:${r * ROW}px;padding-left:${layout.width * laneStep + 8 + 14 * (item.level - 1)}px`;
    return out;
  }
  function value(item, node, status) {
    const word = status === "ok" ? "" : status, by = colour.select.value;
    if (by === "status") return word;
    return [word, by === "gain" ? gainText(steepest(item)) : `${percent(...flushed(item))} flushed`].filter(Boolean).join(" · ");
  }
  function valueTitle(item) {
    if (colour.select.value === "gain") return item.children ? "the gain farthest from 1 of a node in it" : "rms of the outgoing gradient / rms of the incoming one";
    return colour.select.value === "underflow" ? "of the outgoing gradient float16 would flush to zero" : null;
  }
  const place = (node) => { const text = graph.places[graph.place[node]]; return text.startsWith(":") ? "" : text.split("/").pop(); };
  const parameter = (node) => graph.parameters?.[graph.parameter[node]] ?? "";
  const gainText = (gain) => (gain === null || gain === undefined ? "–" : `× ${number(gain)}`);
  /** The gain farthest from 1 within an item; null where none is known. */
  function steepest(item) {
    if (item.gain !== undefined) return item.gain;
    item.gain = null;
    const bits = (gain) => (gain ? Math.abs(Math.log2(gain)) : -1);
    for (let i = item.lo; i < item.hi; i++) if (bits(graph.gain[i]) > bits(item.gain)) item.gain = graph.gain[i];
    return item.gain;
  }
  function flushed(item) {
    let part = 0, whole = 0;
    for (let i = item.lo; i < item.hi; i++) { part += graph.fp16_zero[i]; whole += graph.numel[i]; }
    return [part, whole];
  }
  function tint(item) {
    const node = item.children ? item.worst : item.lo;
    if (colour.select.value === "status") return `var(--nl-${WORDS[graph.status[node]]})`;
    const mix = (name, share) => `color-mix(in srgb, var(--nl-${name}) ${Math.round(100 * Math.min(1, share))}%, var(--nl-line))`;
    if (colour.select.value === "gain") {
      const bits = Math.log2(steepest(item) || 1);
      return mix(bits > 0 ? "carried" : "normal", Math.abs(bits) / 6);
    }
    const [part, whole] = flushed(item);
    return mix("zero", whole ? Math.sqrt(part / whole) : 0);
  }
  function drawLanes(first, last, chosen) {
    const x = (r) => layout.lane[r] * laneStep + 8, y = (r) => r * ROW + ROW / 2;
    const paths = shownEdges.filter(([a, b]) => a < last && b >= first).map(([a, b]) => s("path", { class: "nl-edge",
      d: `M${x(a)} ${y(a)}C${x(a)} ${y(a) + 14} ${x(b)} ${y(a) + 10} ${x(b)} ${y(a) + ROW}V${y(b)}` }));
    const dots = [];
    for (let r = first; r < last; r++) {
      if (isHeading(r)) continue;
      const size = rows[r].children ? 5.5 : 4;
      const place = { x: x(r) - size, y: y(r) - size, width: 2 * size, height: 2 * size, rx: rows[r].children ? 2 : size };
      const dot = s("rect", { ...place, class: r === chosen ? "nl-dot nl-at" : "nl-dot" });
      dot.style.fill = tint(rows[r]);
      dots.push(dot);
    }
    lanesAt.setAttribute("width", layout.width * laneStep + 12);
    lanesAt.setAttribute("height", rows.length * ROW);
    lanesAt.replaceChildren(...paths, ...dots);
  }
  function clicked(event, item) {
    tree.focus({ preventScroll: true });
    if (item.children && event.target.closest(".nl-twist, .nl-name")) toggle(item, !item.open);
    else go(item.children ? item.worst : item.lo);
  }
  function toggle(item, open) {
    item.open = open;
    arrange();
    go(get("position") >= item.lo && get("position") < item.hi ? get("position") : item.worst);
  }
  /** Opens the groups around a node, so that its own row is seen. */
  function reveal(node) {
    let items = roots, opened = false;
    for (let item; (item = items.find((i) => node >= i.lo && node < i.hi))?.children; items = item.children)
      if (!item.open) { item.open = true; opened = true; }
    if (opened) arrange();
  }
  function go(node) {
    if (!count()) return;
    const to = Math.max(0, Math.min(count() - 1, node));
    if (to === get("position")) return select();
    ours = true;
    model.set("position", to);  // its event selects
    ours = false;
    model.save_changes();
  }
  /** The position may come from another view: its row is shown then. */
  function selected() {
    if (!ours && !stale()) reveal(get("position"));
    select();
  }
  const show = (node) => { if (node !== null) { reveal(node); go(node); } };
  function select() {
    if (stale()) return;
    const at = get("position"), last = count() - 1;
    slider.value = at;
    slider.setAttribute("aria-valuetext", count() ? `${at + 1} of ${count()}: ${graph.names[graph.name[at]]}` : "none");
    where.textContent = count() ? `${counted(at + 1)} of ${counted(count())}` : "nothing recorded";
    buttons.back.disabled = at <= 0;
    buttons.on.disabled = play.disabled = at >= last;
    buttons.bad.disabled = firstBad(0) === null;
    buttons.culprit.disabled = get("culprit")?.position === undefined;
    origin.textContent = get("culprit")?.text ?? "";
    origin.hidden = !origin.textContent;
    intoView();
    draw();
    describe();
  }
  function intoView() {
    const top = (rowOf[get("position")] ?? 0) * ROW;
    tall = tree.clientHeight || 460;
    if (top < tree.scrollTop + ROW || top > tree.scrollTop + tall - 2 * ROW) tree.scrollTop = Math.max(0, top - tall / 3);
  }
  function describe() {
    if (stale()) return;
    if (!count()) return pane.replaceChildren(h("p", { class: "nl-dim" }, "No backward pass was recorded."));
    const at = get("position"), detail = get("detail").position === at ? get("detail") : null, g = graph, status = WORDS[g.status[at]];
    const row = (name, key) => h("tr", {}, h("th", { scope: "row" }, name), ...["nan", "inf", "zero"].map((c) => h("td", {}, counted(g[`${key}_${c}`][at]))),
      ...["rms", "max"].map((c) => h("td", {}, number(g[`${key}_${c}`][at]))), h("td", {}, key === "grad_out" ? gainText(g.gain[at]) : ""));
    const module = parameter(at) || g.modules[g.module[at]];
    pane.replaceChildren(
      h("div", { class: "nl-head" }, h("b", {}, g.names[g.name[at]]), h("span", { class: `nl-badge nl-${status}` }, status),
        h("span", { class: "nl-dim" }, g.node[at] < 0 ? "leaf" : `node ${g.node[at]}`), module ? h("span", { class: "nl-dim" }, moduleName(module)) : null),
      h("div", { class: "nl-story", role: "status" }, detail?.story ?? ""),
      h("div", { class: "nl-place nl-mono nl-dim", title: g.places[g.place[at]] }, place(at) || "no line of the program"),
      source(detail, Number(g.places[g.place[at]].split(":").pop())),
      h("table", {}, h("thead", {}, h("tr", {}, ["gradient", "NaN", "inf", "zero", "rms", "max", "gain"].map((t) => h("th", { scope: "col" }, t)))),
        h("tbody", {}, row("in", "grad_in"), row("out", "grad_out"))),
      tensors(detail) ?? "", ...pictures(detail));
  }
  function source(detail, marked) {
    const lines = (detail?.source ?? []).map(([n, text]) => h("div", { class: n === marked ? "nl-marked" : "" },
      h("span", { class: "nl-number" }, `${n === marked ? "→ " : ""}${n}`), text || " "));
    return h("div", { class: "nl-source nl-mono", role: "group", "aria-label": "Source" }, lines);
  }
  function pictures(detail) {
    const both = [["Gradient in", detail?.grad_in], ["Gradient out", detail?.grad_out]], half = get("half");
    const known = both.map((each) => each[1]).filter((data) => data?.counts);
    const axis = commonAxis(known, half), all = (d) => [...d.counts, ...extra(d).map((o) => o[1])], sum = (d) => all(d).reduce((a, b) => a + b, 0);
    const share = Math.max(...known.map((d) => Math.max(...all(d)) / Math.max(1, sum(d))));
    return both.map(([name, data]) => h("figure", {}, h("figcaption", { class: "nl-dim" },
      data?.counts ? `${name}: ${plural(data.numel, "value")} by exponent; dashed: limits of float16` : `${name}: not recorded`),
      data?.counts ? histogram(data, { axis, top: Math.max(1, share * sum(data)), format: half, width: wide, height: 78, label: `${name}, exponent histogram` }) : ""));
  }
  /** Operands and results of the forward operation, those that the node keeps for backward first. */
  function tensors(detail) {
    const all = detail?.tensors ?? [];
    if (!all.length) return null;
    const heads = ["kept as", "tensor", "shape", "zero", "NaN", "inf", "min", "max", "rms", "dtype", "exponents"];
    const row = (t) => h("tr", { class: t.kept ? "nl-kept" : "nl-dim" }, h("th", { scope: "row", class: t.kept ? "nl-mono" : null }, t.as),
      h("td", { title: t.name }, t.name), [t.shape, ...t.numbers].map((text) => h("td", {}, text)),
      h("td", {}, t.dtype), h("td", { class: "nl-blocks", title: "values by exponent, 2⁻⁴¹ to 2²⁰" }, t.blocks));
    return h("div", { class: "nl-wide", tabindex: 0, role: "region", "aria-label": "Saved for backward" },
      h("div", { class: "nl-dim nl-heading" }, "Saved for backward: the forward operation’s operands and results"),
      h("table", {}, h("thead", {}, h("tr", {}, heads.map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, all.map(row))));
  }
  const firstBad = (from) => { for (let i = from; i < count(); i++) if (isBad(graph.status[i])) return i; return null; };
  /** The next node from `from` on that the search box names; it is shown, its groups opened. */
  function find(from, direction) {
    const text = search.value.trim().toLowerCase(), found = [];
    if (text) for (let i = 0; i < count(); i++)
      if (`${graph.names[graph.name[i]]} ${graph.ops[graph.op[i]]} ${graph.modules[graph.module[i]]} ${graph.places[graph.place[i]]} ${parameter(i)} ${graph.node[i]}`
        .toLowerCase().includes(text)) found.push(i);
    const at = direction < 0 ? found.findLast((i) => i < from) ?? found.at(-1) : found.find((i) => i >= from) ?? found[0];
    hits.textContent = !text ? "" : found.length ? `${counted(found.indexOf(at) + 1)} of ${counted(found.length)}` : "none found";
    if (at !== undefined) show(at);
  }
  function start() {
    const forth = () => { if (get("position") >= count() - 1) stop(); else go(get("position") + 1); };
    timer = setInterval(forth, 300);
    play.setAttribute("aria-pressed", "true");
  }
  function stop() { clearInterval(timer); timer = null; play.setAttribute("aria-pressed", "false"); }

  const moves = {
    ArrowDown: (r) => r + 1, ArrowUp: (r) => r - 1, j: (r) => r + 1, k: (r) => r - 1, Home: () => 0, End: () => rows.length - 1,
    PageDown: (r) => r + 15, PageUp: (r) => r - 15,
  };
  function press(event) {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || !count()) return;
    if (target === search) {
      if (key !== "Enter") return;
      find(get("position") + (event.shiftKey ? 0 : 1), event.shiftKey ? -1 : 1);
    } else if (key === "/") search.focus();
    else if (key === "n") show(firstBad(get("position") + 1) ?? firstBad(0));
    else if (target.matches("input, select") || (pane.contains(target) && key.startsWith("Arrow"))) return;
    else if (moves[key]) moveTo(moves[key](rowOf[get("position")]));
    else if (key === "ArrowRight" || key === "ArrowLeft" || (target === tree && (key === "Enter" || key === " "))) turn(key);
    else return;
    event.preventDefault();
  }
  function moveTo(r) {
    const item = rows[Math.max(0, Math.min(rows.length - 1, r))];
    const node = item.children && !item.open ? item.worst : item.lo;
    if (item.children && item.open) return go(r < rowOf[get("position")] && r > 0 ? before(r) : item.lo);
    go(node);
  }
  /** An open group has no node of its own: going up passes over it. */
  function before(r) {
    while (r > 0 && rows[r].children && rows[r].open) r--;
    const item = rows[r];
    return item.children ? (item.open ? item.lo : item.worst) : item.lo;
  }
  function turn(key) {
    const item = rows[rowOf[get("position")]];
    const open = key === "ArrowRight" || (key !== "ArrowLeft" && !item.open);
    if (item.children) toggle(item, open);
    else if (key === "ArrowLeft" && item.parent) toggle(item.parent, false);
  }
  const events = { "change:graph": load, "change:position": selected, "change:detail": describe };
  const loosen = keepKeys(root), restore = replaceFallback(el, get("fallback"));
  root.addEventListener("keydown", press);
  for (const [name, action] of Object.entries(events)) model.on(name, action);
  const watch = new ResizeObserver(() => { if (tree.clientHeight !== tall) intoView(); draw(); if (room(pane, 560) !== wide) { wide = room(pane, 560); describe(); } });
  load();
  watch.observe(tree);
  return () => {
    stop();
    watch.disconnect();
    loosen();
    restore();
    for (const [name, action] of Object.entries(events)) model.off(name, action);
  };
}
export default { render };
