for (const fix of document.querySelectorAll(".nl-fix[data-copy]")) {
  const button = document.createElement("button"), text = fix.dataset.copy;
  button.type = "button";
  button.textContent = "Copy fix";
  button.onclick = () => navigator.clipboard?.writeText(text).then(() => { button.textContent = "Copied"; });
  fix.querySelector(".nl-fix-head").append(button);
}
