const FATES = [["zero", "flushed to zero"], ["subnormal", "subnormal"], ["normal", "normal"], ["overflow", "overflow"]];

function render({ model, el }) {
  const get = (name) => model.get(name), uid = "nl" + Math.random().toString(36).slice(2, 8);
  const set = (name, value) => { model.set(name, value); model.save_changes(); draw(); };
  const tensors = get("tensors"), formats = get("formats"), gradients = get("gradients");
  const select = h("select", { "aria-label": "Tensor", onchange: () => set("selected", Number(select.value)) });
  const search = h("input", { type: "search", "aria-label": "Search", placeholder: "Search: op, module, line, step", oninput: list });
  const found = h("span", { class: "nl-dim", role: "status", "aria-label": "Matches" });
  const slider = h("input", { type: "range", min: -16, max: 40, step: 1, "aria-label": "Loss scale (log2)", oninput: () => set("log2_scale", Number(slider.value)) });
  const scaleText = h("output", { class: "nl-scale nl-mono" });
  let log = false;
  const logarithmic = h("button", { type: "button", "aria-pressed": "false", title: "Heights by the logarithm of the count", onclick: () => { log = !log; draw(); } }, "log axis");
  const boxes = formats.map(({ name }) => h("input", { type: "checkbox", id: `${uid}-${name}`, onchange: () =>
    set("chosen", formats.map((f) => f.name).filter((_, i) => boxes[i].checked)) }));
  const use = (get_scale) => h("button", { type: "button", onclick: () => set("log2_scale", get_scale()) });
  const primary = () => formats.find((f) => f.name === (get("chosen")[0] ?? "float16"));
  const now = () => tensors[get("selected")];
  /** The tensor at hand with the answer of a replay, if it has come: {reason} where there is none, else data, twin, shares.
   *  One question is on its way at a time: a slider that moves asks again when the answer is here. */
  let waiting = false, drawn = 0;
  const replayed = () => {
    const wanted = [get("selected"), get("log2_scale")], answer = get("replayed");
    if (String(answer.of) === String(wanted)) return answer;
    if (!waiting) { waiting = true; model.set("asked", wanted); model.save_changes(); }
    return null;
  };
  const answered = () => { waiting = false; draw(); };
  const bestHere = use(() => now().best[primary().name]), bestAll = use(() => gradients.best[primary().name]);
  const plots = h("div", { class: "nl-plots" }), key = h("div", { class: "nl-key nl-dim" });
  const readout = h("div", { class: "nl-readout", role: "status", "aria-label": "Shares" });
  const first = get("first_loss"), lossy = first?.text && h("div", { class: "nl-bar-of-controls nl-first-loss" },
    h("button", { type: "button", onclick: () => set("selected", first.selected) }, "First loss"), h("span", {}, `Signal is lost first at ${first?.text}`));
  const root = h("div", { class: "nanlab nl-underflow" }, lossy || null,
    h("div", { class: "nl-bar-of-controls" }, search, h("label", { class: "nl-grow" }, "Tensor", select), found),
    h("div", { class: "nl-bar-of-controls", role: "group", "aria-label": "Formats" },
      formats.map(({ name }, i) => h("label", { for: `${uid}-${name}` }, boxes[i], name)), logarithmic),
    h("div", { class: "nl-bar-of-controls" }, h("span", { class: "nl-dim", "aria-hidden": "true" }, "Loss scale"), slider, scaleText),
    h("div", { class: "nl-bar-of-controls" }, h("span", { class: "nl-dim nl-loses" }), bestHere, bestAll), plots, key, readout);
  const loses = root.querySelector(".nl-loses");
  if (!tensors.length) root.replaceChildren(h("p", { class: "nl-dim" }, "No tensor was recorded."));
  el.append(root);

  /** The tensors that match what is sought, a group for each module, the worst first; the one at hand always. */
  function list() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), groups = new Map();
    let matching = 0;
    tensors.forEach((tensor, i) => {
      const text = `${tensor.module} ${tensor.label}`.toLowerCase(), matches = words.every((word) => text.includes(word));
      matching += matches;
      if (!matches && i !== get("selected")) return;
      const name = tensor.module || "outside any module";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(h("option", { value: i }, tensor.label));
    });
    select.replaceChildren(...[...groups].map(([name, options]) => h("optgroup", { label: name }, options)));
    select.value = get("selected");
    found.textContent = words.length ? `${counted(matching)} of ${plural(tensors.length, "tensor")}` : plural(tensors.length, "tensor");
  }
  function draw() {
    if (!tensors.length) return;
    if (!select.querySelector(`option[value="${get("selected")}"]`)) list();
    logarithmic.setAttribute("aria-pressed", String(log));
    const scale = get("log2_scale"), tensor = now(), format = primary();
    select.value = get("selected");
    slider.value = scale;
    slider.setAttribute("aria-valuetext", `2 to the ${scale}`);
    const run = tensor.run_scale ? ` × 2${superscript(tensor.run_scale)} of the run = 2${superscript(scale + tensor.run_scale)}` : "";
    scaleText.textContent = run ? `2${superscript(scale)}${run}` : `2${superscript(scale)} = ${plain(2 ** scale)}`;
    boxes.forEach((box, i) => { box.checked = get("chosen").includes(formats[i].name); });
    loses.textContent = `Loses least in ${format.name}:`;
    bestHere.textContent = `${whole(tensor.best[format.name], tensor.run_scale)} for this tensor`;
    bestAll.textContent = `${whole(gradients.best[format.name], gradients.run_scale)} for all ${plural(gradients.tensors, "gradient")}`;
    bestAll.hidden = !gradients.tensors;
    const answer = replayed(), exact = answer && !answer.reason ? answer : null, shown = exact ? { ...tensor, ...exact } : tensor;
    drawPlots(shown, format, scale, exact);
    key.replaceChildren(...FATES.map(([name, text]) => keyed(name, text)), keyed("true-zero", "true zeros"), keyed("nonfinite", "NaN, ±inf"));
    readout.replaceChildren(...shares(shown, scale, exact), note(tensor, scale, answer));
  }
  /** The loss scale as a program sets it: the slider counts from the one of the run, if that is one for all steps. */
  function whole(log2, run) { return run === null ? `2${superscript(log2)} × the run’s` : `2${superscript(log2 + run)}`; }
  function plain(x) { return x >= 1e7 || x < 2 ** -9 ? x.toExponential(2) : counted(x); }
  function keyed(name, text) {
    const out = h("span", {}, text);
    out.style.setProperty("--nl-key", `var(--nl-${name})`);
    return out;
  }
  function drawPlots(tensor, format, scale, exact) {
    const twin = tensor.twin && { ...tensor.twin, flushed: 0 }, at = exact && scale && tensor.scalable ? `run again at ${scaled(tensor, scale)}` : "as it ran";
    const width = drawn = room(root, 860), both = [[`${at}, ${tensor.dtype}`, tensor.data], ...(twin ? [["its float32 twin", twin]] : [])];
    const axis = commonAxis(both.map((each) => each[1]), formats[0]);
    const top = Math.max(1, ...both.flatMap(([, d]) => [...d.counts, ...extra(d).map((o) => o[1])]));
    const figures = both.map(([name, data], i) => {
      const rounded = i === both.length - 1 ? exact?.shares[format.name] : undefined;  // of the twin, where there is one
      const total = data.counts.reduce((a, b) => a + b, 0) + data.zero + data.neginf + data.posinf + data.nan;
      const sum = `${counted(total)} value${total === 1 ? "" : "s"}: ${counted(total - data.zero - data.neginf - data.posinf - data.nan)} finite and not zero`
        + extra(data).filter((o) => o[1]).map(([what, n]) => `, ${counted(n)} ${what}`).join("");
      const lost = [data.flushed && `${counted(data.flushed)} became zero`, data.overflowed && `${counted(data.overflowed)} became infinite`].filter(Boolean);
      return h("figure", {}, h("figcaption", {}, h("b", {}, name), h("span", { class: "nl-dim" }, `  ${sum}`),
        lost.length ? h("span", { class: "nl-lost" }, `  ${lost.join(" and ")}`) : null),
        histogram(data, { axis, top, log, format, scale, cast: rounded, width, height: twin ? 130 : 190, label: `${name}: ${sum}` }));
    });
    const moved = scale ? `The axis has the values before × 2${superscript(scale)}: the limits move instead.` : "";
    plots.replaceChildren(...figures, bands(axis, scale, width), h("div", { class: "nl-dim nl-moved" }, moved));
  }
  /** What each format does with each exponent, under the histograms on their axis. */
  function bands(axis, scale, width) {
    const chosen = formats.filter((f) => get("chosen").includes(f.name)), unit = (width - SIDE - AXIS) / (axis[1] - axis[0] + 1);
    const root = s("svg", { viewBox: `0 0 ${width} ${Math.max(1, chosen.length * 20)}`, class: "nl-histogram nl-bands", "aria-hidden": "true" });
    chosen.forEach((format, row) => {
      const edges = [axis[0], format.zero_limit - scale, format.normal_limit + 1 - scale, format.overflow_limit + 1 - scale, axis[1] + 1];
      FATES.forEach(([name, text], i) => {
        const from = Math.max(axis[0], edges[i]), to = Math.min(axis[1] + 1, edges[i + 1]), long = (to - from) * unit;
        if (long <= 0) return;
        root.append(s("rect", { x: AXIS + (from - axis[0]) * unit, y: row * 20 + 2, width: Math.max(0, long - 1), height: 15, class: `nl-bar nl-band nl-${name}` }));
        if (long > 6.2 * text.length) root.append(s("text", { x: AXIS + (from - axis[0]) * unit + long / 2, y: row * 20 + 13, "text-anchor": "middle", class: "nl-band-name" }, text));
      });
      root.append(s("text", { x: width - SIDE + 8, y: row * 20 + 14, class: "nl-format" }, format.name));
    });
    return root;
  }
  function shares(tensor, scale, exact) {
    const chosen = formats.filter((f) => get("chosen").includes(f.name));
    if (!chosen.length) return [h("p", { class: "nl-dim" }, "Choose a format.")];
    const { flushed = 0, overflowed = 0, numel } = tensor.data, gone = tensor.twin || exact ? 0 : flushed + overflowed;
    const rows = chosen.map((format) => {
      const cast = exact?.shares[format.name] ?? castShares(tensor.twin ?? tensor.data, format, scale);
      return h("tr", {}, h("th", { scope: "row" }, format.name), FATES.map(([name]) =>
        h("td", { class: `nl-share-${name}` }, percent(cast[name], cast.numel), h("span", { class: "nl-dim" }, ` ${counted(cast[name])}`))),
        exact ? null : h("td", { class: "nl-share-limit" }, counted(cast.limit)),
        gone ? h("td", { class: "nl-lost" }, percent(gone, numel), h("span", { class: "nl-dim" }, ` ${counted(gone)}`)) : null);
    });
    const heads = ["format", ...FATES.map((f) => f[1]), ...(exact ? [] : ["near a limit"]), ...(gone ? ["lost as it ran"] : [])];
    return [h("table", {}, h("thead", {}, h("tr", {}, heads.map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, rows))];
  }
  /** What the numbers are of and where they come from. */
  function note(tensor, scale, answer) {
    const exact = answer && !answer.reason, at = scaled(tensor, scale);
    const source = !answer ? `By histogram. The step is being run again at ${at}…`
      : exact ? `By replay: the step was run again${tensor.scalable ? ` at ${at}` : ""}, and each value rounded.`
      : `By histogram: ${answer.reason}.`;
    return h("p", { class: "nl-dim nl-note", "aria-busy": String(!answer) }, h("b", { class: answer ? "" : "nl-busy" }, source),
      ` Shares of the non-zero finite values${tensor.twin ? " of the float32 twin" : ""}.`
        + (exact ? onLimit(scale, answer) : " A value near a limit counts as kept, and may round across it.")
        + (!exact && !tensor.twin && tensor.data.flushed + tensor.data.overflowed ? " What was lost as it ran is not among them." : "")
        + (tensor.scalable ? "" : " A loss scale reaches gradients only: here the slider multiplies the values themselves.")
        + (get("left_out") ? ` ${plural(get("left_out"), "more tensor")} that would lose less ${get("left_out") === 1 ? "is" : "are"} not listed.` : ""));
  }
  /** A word on bars whose values did not end where the limits, drawn between bins, have them. */
  function onLimit(scale, { data, twin, shares: rounded }) {
    const format = primary(), cast = castShares(twin ?? data, format, scale);
    const same = FATES.every(([name]) => cast[name] === rounded[format.name][name]);
    return same ? "" : " A bar beside a limit has the colours of what its values became.";
  }
  const scaled = (tensor, scale) => tensor.scalable ? `loss scale 2${superscript(scale + tensor.run_scale)}` : `2${superscript(scale)}`;
  const loosen = keepKeys(root), restore = replaceFallback(el, get("fallback")), names = ["selected", "chosen", "log2_scale"];
  for (const name of names) model.on(`change:${name}`, draw);
  model.on("change:replayed", answered);
  const watch = new ResizeObserver(() => { if (room(root, 860) !== drawn) draw(); });
  draw();
  watch.observe(root);
  return () => {
    watch.disconnect();
    loosen();
    restore();
    model.off("change:replayed", answered);
    for (const name of names) model.off(`change:${name}`, draw);
  };
}
export default { render };
