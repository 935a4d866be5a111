// Finds pages of this documentation; the index lies beside it in search-index.js, so that it works from a disk.
const box = document.querySelector(".search input"), list = document.querySelector(".search ul");
const up = document.currentScript.dataset.up;

/** Pages that hold every word; a word in the title counts more, and more at the beginning of a word. */
function found(text) {
  const words = text.toLowerCase().split(/[\s_.-]+/).filter(Boolean);
  const score = ({ title, text: body }) => {
    let sum = 0;
    for (const word of words) {
      const head = ` ${title.toLowerCase().replace(/[_.-]/g, " ")}`, rest = ` ${body.toLowerCase()}`;
      const worth = head.includes(` ${word}`) ? 8 : head.includes(word) ? 4 : rest.includes(` ${word}`) ? 2 : rest.includes(word) ? 1 : 0;
      if (!worth) return 0;
      sum += worth;
    }
    return sum;
  };
  return words.length ? PAGES.map((page) => [score(page), page]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 12) : [];
}

function show() {
  const pages = found(box.value);
  list.hidden = !box.value.trim();
  list.replaceChildren(...pages.map(([, { title, kind, url, text }]) => {
    const item = document.createElement("li"), link = document.createElement("a"), about = document.createElement("small");
    link.href = up + url;
    link.textContent = title;
    about.textContent = `${kind}: ${text}`;
    link.append(about);
    item.append(link);
    return item;
  }));
  if (!pages.length) list.textContent = " No page holds these words.";
}

box.addEventListener("input", show);
box.addEventListener("keydown", (e) => {
  const first = list.querySelector("a");
  if (e.key === "Enter" && first) location.href = first.href;
  if (e.key === "ArrowDown" && first) { e.preventDefault(); first.focus(); }
  if (e.key === "Escape") { box.value = ""; show(); }
});
list.addEventListener("keydown", (e) => {
  const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement);
  const next = { ArrowDown: links[at + 1], ArrowUp: links[at - 1] ?? box }[e.key];
  if (next) { e.preventDefault(); next.focus(); }
});
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && document.activeElement !== box) { e.preventDefault(); box.focus(); }
});
