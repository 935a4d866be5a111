// Shared by the widgets: building elements, keys, numbers, exponent histograms. Put before each widget's own module.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value === "boolean") node[name] = value;
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Keys pressed inside a widget are the widget's: JupyterLab would insert and delete cells.
 *  JupyterLab listens while the event rises, so it is stopped there; Notebook 7 while it sinks, before a widget hears of
 *  it, but not for an element that bears the attribute. Keys with Ctrl, and Escape, are the notebook's. */
const keepKeys = (el) => {
  const ours = (e) => !e.ctrlKey && !e.metaKey && !e.altKey && e.key !== "Escape";
  const keep = (e) => { if (ours(e)) e.stopPropagation(); };
  const mark = (e) => { if (el.contains(e.target)) e.target.toggleAttribute("data-lm-suppress-shortcuts", ours(e)); };
  el.addEventListener("keydown", keep);
  window.addEventListener("keydown", mark, true);
  return () => { el.removeEventListener("keydown", keep); window.removeEventListener("keydown", mark, true); };
};

/** The static picture displayed before the widget steps aside while the widget is there: by a rule, since a notebook may
 *  put either into the page later, or anew. A copy of the notebook, open beside it, keeps its picture. */
const replaceFallback = (el, name) => {
  if (!name) return () => {};
  const live = `${name}-live`;
  const rule = h("style", {}, `.jp-OutputArea:has(.${live}) .jp-OutputArea-child:has(.${name}), body:not(:has(.jp-OutputArea)) .${name} { display: none !important; }`);
  el.classList.add(live);
  document.head.append(rule);
  return () => { el.classList.remove(live); rule.remove(); };
};

/** A module by its path; one of a Sequential has a number for a path. */
const moduleName = (path) => /^\d+$/.test(path) ? `module ${path}` : path;
const counted = (n) => n.toLocaleString("en-US");
const plural = (n, word) => `${counted(n)} ${word}${n === 1 ? "" : "s"}`;
const number = (x) => {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 0.9995e-3 || size >= 1e5)) return x.toExponential(2).replace(".00e", "e").replace("e+", "e");
  return String(Number(x.toPrecision(3)));
};
const percent = (part, whole) => {
  if (!whole || !part) return "0 %";
  const share = (100 * part) / whole;
  if (share < 0.01) return "< 0.01 %";
  return part < whole && share > 99.99 ? "> 99.99 %" : `${Number(share.toPrecision(3))} %`;
};

/** What a format does with the values of one bin after scaling by 2^scale; the limits' own bins count as kept. */
const fate = (exponent, format, scale) => {
  const e = exponent + scale;
  if (e < format.zero_limit) return "zero";
  if (e <= format.normal_limit) return "subnormal";
  return e <= format.overflow_limit ? "normal" : "overflow";
};

/** Counts as in nanlab.analysis.precision.cast_shares. */
const castShares = (histogram, format, scale) => {
  const out = { numel: 0, zero: 0, subnormal: 0, normal: 0, overflow: 0, limit: 0 };
  const limits = [format.zero_limit, format.normal_limit, format.overflow_limit];
  histogram.counts.forEach((count, i) => {
    const exponent = histogram.first + i;
    out.numel += count;
    out[fate(exponent, format, scale)] += count;
    if (limits.includes(exponent + scale)) out.limit += count;
  });
  return out;
};

/** Each bin as [fate, count] pairs. Rounding keeps the order of values, so the smallest of them are those that a cast flushed,
 *  and those of a limit's bin may be on both sides: cast holds what became of all. */
const fates = (data, format, scale, cast = castShares(data, format, scale)) => {
  const left = ["zero", "subnormal", "normal", "overflow"].map((name) => [name, cast[name]]);
  return data.counts.map((n) => left.map((each) => {
    const part = Math.min(n, each[1]);
    n -= part;
    each[1] -= part;
    return [each[0], part];
  }).filter((pair) => pair[1]));
};

const extra = (h) => [["zero", h.zero], ["−inf", h.neginf], ["+inf", h.posinf], ["NaN", h.nan]];
const SIDE = 168, AXIS = 44;  // room for zeros and what is not finite at the right, for the numbers of the axis at the left

/** Where the axis of a histogram of so many values has its lines: shares of all values, or powers of ten of a count. */
function ticks(most, total, log) {
  if (log) return Array.from({ length: Math.floor(Math.log10(most)) + 1 }, (_, i) => [10 ** i, shortCount(10 ** i)]);
  const step = [0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001].find((n) => 2 * n * total <= most) ?? most / total / 2;
  return Array.from({ length: Math.min(4, Math.floor(most / total / step + 1e-9)) }, (_, i) => [(i + 1) * step * total, `${Number((100 * (i + 1) * step).toPrecision(3))} %`]);
}

/** An exponent histogram as SVG. axis: [low, high] exponents; format: colours the bars, by what a cast made of all
 *  values where that is known, and draws its three limits; log: heights by the logarithm of the count. Zeros that were other values before they were rounded are a part of their bar. */
function histogram(data, { axis, format, scale = 0, width = 520, height = 120, label, top, log = false, cast }) {
  const [low, high] = axis, plot = width - SIDE - AXIS, unit = plot / (high - low + 1), base = height - 18;
  const others = extra(data), most = top ?? Math.max(1, ...data.counts, ...others.map((o) => o[1]));
  const total = Math.max(1, data.counts.reduce((a, b) => a + b, 0) + others.reduce((a, o) => a + o[1], 0));
  const tall = (n) => (n ? Math.max(1.5, ((base - 17) * (log ? Math.log1p(n) / Math.log1p(most) : n / most))) : 0);
  const x = (e) => AXIS + (e - low) * unit;
  const root = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "nl-histogram", role: "img", "aria-label": label });
  for (const [n, text] of ticks(most, total, log)) {
    root.append(s("line", { x1: AXIS, x2: width, y1: base - tall(n), y2: base - tall(n), class: "nl-grid" }));
    root.append(s("text", { x: AXIS - 5, y: base - tall(n) + 3, "text-anchor": "end", class: "nl-axis" }, text));
  }
  const bar = (left, wide, n, kind, title, under = 0) => n && root.append(
    s("rect", { x: left, y: base - tall(n + under), width: wide, height: tall(n + under) - tall(under), class: `nl-bar nl-${kind}` }, s("title", {}, title)));
  fates(data, format, scale, cast).forEach((parts, i) => {
    const e = data.first + i;
    let under = 0;
    for (const [kind, n] of parts) {
      bar(x(e) + 0.5, Math.max(1, unit - 1), n, kind, `2^${e} to 2^${e + 1}: ${plural(n, "value")}`, under);
      under += n;
    }
  });
  others.forEach(([name, n], i) => {
    const left = width - SIDE + 14 + i * 39, flushed = name === "zero" ? Math.min(n, data.flushed ?? 0) : 0;
    const kind = name === "zero" ? "true-zero" : name !== "NaN" && data.overflowed ? "overflow" : "nonfinite";
    bar(left + 6, 22, n - flushed, kind, `${name}: ${plural(n - flushed, "value")}`);
    bar(left + 6, 22, flushed, "zero", `flushed to zero as it ran: ${plural(flushed, "value")}`, n - flushed);
    root.append(s("text", { x: left + 17, y: height - 5, "text-anchor": "middle", class: "nl-axis" }, name));
    root.append(s("text", { x: left + 17, y: base - tall(n) - 3, "text-anchor": "middle", class: "nl-count" }, shortCount(n)));
  });
  root.append(s("line", { x1: AXIS, x2: width, y1: base, y2: base, class: "nl-base" }));
  const every = [1, 2, 5, 10, 20, 50, 100, 200].find((n) => n * unit >= 38) ?? 500;
  for (let e = Math.ceil(low / every) * every; e <= high; e += every)
    if (x(e) + unit / 2 > AXIS + 11) root.append(s("text", { x: x(e) + unit / 2, y: height - 5, "text-anchor": "middle", class: "nl-axis" }, `2${superscript(e)}`));
  for (const [edge, name] of [[format.zero_limit, "0"], [format.normal_limit + 1, "normal"], [format.overflow_limit + 1, "max"]]) {
    const at = x(edge - scale);
    if (at < AXIS || at > AXIS + plot) continue;
    root.append(s("line", { x1: at, x2: at, y1: 0, y2: base, class: "nl-limit" }));
    root.append(s("text", { x: at + 3, y: 9, class: "nl-limit-name" }, name));
  }
  return root;
}
/** Width of a picture in a box, so that its text has its own size. */
const room = (box, most) => Math.max(300, Math.min(most, (box.clientWidth || most + 22) - 22));
const superscript = (n) => String(n).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
const shortCount = (n) => (n < 10000 ? String(n) : n < 1e6 ? `${Math.round(n / 1e3)}k` : `${Number((n / 1e6).toPrecision(3))}M`);

/** One axis that holds all histograms and the limits of a format that are near them. */
const commonAxis = (histograms, format, scale = 0) => {
  const filled = histograms.filter((data) => data.counts.length);
  const low = [format.zero_limit - scale - 3, ...filled.map((data) => data.first - 1)];
  const high = [format.overflow_limit - scale + 3, ...filled.map((data) => data.first + data.counts.length)];
  return [Math.min(...low), Math.max(...high)];
};
