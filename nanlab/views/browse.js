const ROW = 23;

function render({ model, el }) {
  const get = (name) => model.get(name), blocks = new Map(), texts = get("texts");
  let timer = null, asked = -1, widths = null, order = 0, drawn = "";
  const search = h("input", { type: "search", "aria-label": "Filter", placeholder: `Filter: ${texts.slice(0, 3).join(", ")}${texts.length > 3 ? " …" : ""}`, title: texts.join(", "), oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => set("needle", search.value), 150);
  } });
  const caption = h("span", { class: "nl-dim", role: "status" });
  const trouble = h("button", { type: "button", onclick: () => set("sort_by", [-1, true]) }, "Trouble first");
  const head = h("tr", {}), body = h("tbody", {}), above = h("tr", { "aria-hidden": "true" }), below = h("tr", { "aria-hidden": "true" });
  const table = h("table", {}, h("thead", {}, head), body);
  const scroller = h("div", { class: "nl-scroller", tabindex: 0, role: "region", "aria-label": "Table", onscroll: () => draw() }, table);
  const slide = (way) => scroller.scrollBy({ left: way * 0.7 * scroller.clientWidth });
  const left = h("button", { type: "button", "aria-label": "Columns to the left", onclick: () => slide(-1) }, "◂");
  const right = h("button", { type: "button", onclick: () => slide(1) }, "More columns ▸");
  const sides = h("span", { class: "nl-sides" }, left, right);
  const root = h("div", { class: "nanlab nl-browse" }, h("div", { class: "nl-bar-of-controls" }, search, trouble, caption, sides), scroller);
  search.hidden = !texts.length;
  trouble.hidden = !get("troubled");
  el.append(root);
  const set = (name, value) => { model.set(name, value); model.save_changes(); };

  /** Made anew only when they change: a click on what is replaced meanwhile is lost. */
  function heads() {
    const [by, up] = get("sort_by"), now = JSON.stringify([get("heads"), by, up]);
    if (now === drawn) return;
    drawn = now;
    head.replaceChildren(...get("heads").map(([title, align], i) => {
      const order = i === by ? (up ? "ascending" : "descending") : "none";
      const arrow = i === by ? (up ? " ▲" : " ▼") : "";
      return h("th", { scope: "col", "aria-sort": order, class: `nl-${align}` },
        h("button", { type: "button", onclick: () => set("sort_by", [i, i === by ? !up : align === "left"]) }, title + arrow));
    }));
    trouble.setAttribute("aria-pressed", String(by < 0));
  }
  function keep() {
    const { first, rows, order: now } = get("block");
    if (now !== order) { blocks.clear(); asked = -1; order = now; scroller.scrollTop = 0; }
    rows.forEach((cells, i) => blocks.set(first + i, cells));
    draw();
  }
  function about() {
    caption.textContent = get("caption");
    heads();
    draw();
  }
  function draw() {
    const total = get("total"), seen = Math.ceil((scroller.clientHeight || 420) / ROW);
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - 6), last = Math.min(total, first + seen + 12);
    let missing = first;
    while (missing < last && blocks.has(missing)) missing++;
    if (missing < last) { const from = Math.max(0, missing - 10); if (asked !== from) { asked = from; set("want", from); } }
    above.style.height = `${first * ROW}px`;
    below.style.height = `${(total - last) * ROW}px`;
    body.replaceChildren(above, ...Array.from({ length: last - first }, (_, i) => row(first + i)), total ? below : none());
    pin();
    edges();
  }
  const none = () => h("tr", {}, h("td", { class: "nl-left nl-dim", colspan: get("heads").length }, get("needle") ? `No row holds “${get("needle")}”.` : "No rows."));
  /** Where scroll bars are not shown, nothing else tells that there are columns out of sight. */
  function edges() {
    const hidden = scroller.scrollWidth - scroller.clientWidth;
    sides.hidden = hidden < 2;
    left.disabled = scroller.scrollLeft < 1;
    right.disabled = scroller.scrollLeft > hidden - 2;
    scroller.classList.toggle("nl-more", !right.disabled);
  }
  /** Columns keep their width while the rows change under them. */
  function pin() {
    if (!table.offsetWidth || !blocks.size) return;
    const now = [...head.children].map((th) => th.getBoundingClientRect().width);
    widths = now.map((w, i) => Math.max(w, widths?.[i] ?? 0));
    [...head.children].forEach((th, i) => { th.style.minWidth = `${widths[i]}px`; });
  }
  function row(r) {
    const cells = blocks.get(r), columns = get("heads");
    const chosen = r === get("selected");
    const out = h("tr", { "aria-rowindex": r + 2, "aria-selected": chosen ? "true" : null, class: chosen ? "nl-chosen" : null,
      onclick: () => { if (String(getSelection()) === "") set("selected", r); } }, columns.map(([, align], i) => {
      const td = h("td", { class: `nl-${align}` });
      td.innerHTML = cells?.[i] ?? "…";  // made by nanlab, every text in it escaped
      return td;
    }));
    return out;
  }
  /** What another view selected is brought into view. */
  function selected() {
    const at = get("selected"), top = at * ROW, high = scroller.clientHeight || 420;
    if (at >= 0 && (top < scroller.scrollTop || top > scroller.scrollTop + high - 3 * ROW)) scroller.scrollTop = Math.max(0, top - high / 3);
    draw();
  }
  const events = { "change:selected": selected, "change:block": keep, "change:total": about, "change:caption": about, "change:sort_by": about };
  scroller.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!step || event.target !== scroller || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(get("total") - 1, get("selected") + step));
    if (to !== get("selected")) set("selected", to);
  });
  const loosen = keepKeys(root), restore = replaceFallback(el, get("fallback"));
  for (const [name, action] of Object.entries(events)) model.on(name, action);
  keep();
  about();
  const resized = new ResizeObserver(edges);
  resized.observe(scroller);
  requestAnimationFrame(selected);
  return () => {
    clearTimeout(timer);
    resized.disconnect();
    loosen();
    restore();
    for (const [name, action] of Object.entries(events)) model.off(name, action);
  };
}
export default { render };
