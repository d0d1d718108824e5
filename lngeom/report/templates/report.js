"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const one = selector => document.querySelector(selector);
const claims = all("details.claim");
const texts = claims.map(claim => all("[data-text]", claim).map(e => e.textContent).join(" ").toLowerCase());
const search = one("#search"), topic = one("#topic"), strength = one("#strength");
const boxes = all("#verdicts input");

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const verdicts = new Set(boxes.filter(box => box.checked).map(box => box.value));
  let shown = 0;
  claims.forEach((claim, i) => {
    const { topic: t, verdict: v, strength: s } = claim.dataset;
    claim.hidden = !(verdicts.has(v) && (!topic.value || t === topic.value) && (!strength.value || s === strength.value)
      && words.every(word => texts[i].includes(word)));
    shown += !claim.hidden;
  });
  for (const section of all("section.topic")) section.hidden = all("details.claim", section).every(c => c.hidden);
  one("#none").hidden = shown > 0;
  one("#shown").textContent = `${shown} of ${claims.length} claims shown`;
}

function reset() {
  search.value = topic.value = strength.value = "";
  for (const box of boxes) box.checked = true;
  filter();
}

function openTarget() {
  let id = "";
  try { id = decodeURIComponent(location.hash.slice(1)); } catch { return; }
  const claim = id && document.getElementById(id);
  if (!claim || !claim.matches("details.claim")) return;
  if (claim.hidden) reset();
  claim.open = true;
  claim.scrollIntoView();
  claim.querySelector("summary").focus({ preventScroll: true });
}

/* What is wider than its place can be scrolled with the keyboard, and says so. */
const reachable = new ResizeObserver(entries => {
  for (const { target } of entries) {
    const wide = target.scrollWidth > target.clientWidth + 1;
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", target.dataset.label]])
      wide ? target.setAttribute(name, value) : target.removeAttribute(name);
  }
});
for (const element of all(".scroll")) reachable.observe(element);

search.addEventListener("input", filter);
for (const input of [topic, strength, ...boxes]) input.addEventListener("change", filter);
one("#reset").addEventListener("click", reset);
one("#open").addEventListener("click", () => { for (const claim of claims) claim.open = !claim.hidden || claim.open; });
one("#close").addEventListener("click", () => { for (const details of all("details")) details.open = false; });
one("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "light" : "dark";
});
document.addEventListener("keydown", event => {
  if (event.key === "/" && !event.target.matches("input, select")) { event.preventDefault(); search.focus(); }
});
addEventListener("hashchange", openTarget);
document.addEventListener("click", event => {  /* a link to where the page already is */
  const link = event.target.closest('a[href^="#"]');
  if (link && link.hash === location.hash) openTarget();
});

/* On paper everything is open, and a formula wider than the page is made to fit. */
let opened = [];
addEventListener("beforeprint", () => {
  opened = all("details:not([open]):not(.checked)");
  for (const details of opened) details.open = true;
  for (const math of all(".scroll > math")) {
    const width = math.getBoundingClientRect().width;
    if (width > 640) math.style.fontSize = `${Math.max(640 / width, 0.3)}em`;
  }
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
  for (const math of all(".scroll > math")) math.style.fontSize = "";
});

one("#controls").hidden = false;
filter();
openTarget();
