"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const one = selector => document.querySelector(selector);
const claims = all("details.claim"), boxes = all("#verdicts input");
const fields = { search: one("#search"), topic: one("#topic"), strength: one("#strength"), origin: one("#origin") };

{% include "search.js" %}
const records = claims.map(claim => ({
  ids: claim.dataset.ids.split(" "), keys: new Set(claim.dataset.keys.split(" ")), words: claim.dataset.words, verdict: claim.dataset.verdict,
}));

function chosen() {
  const found = new URLSearchParams(), checked = boxes.filter(box => box.checked).map(box => box.value);
  for (const [name, field] of Object.entries(fields)) if (field.value) found.set(name, field.value);
  if (checked.length < boxes.length) found.set("verdict", checked.join());
  return found;
}

function filter() {
  const found = matcher(fields.search.value, records), verdicts = new Set(boxes.filter(box => box.checked).map(box => box.value));
  claims.forEach((claim, i) => {
    claim.hidden = !(verdicts.has(claim.dataset.verdict) && found(records[i])
      && ["topic", "strength", "origin"].every(name => !fields[name].value || claim.dataset[name] === fields[name].value));
  });
  const narrowed = chosen().size > 0;
  for (const group of all("details.group, section.topic")) {
    group.hidden = all("details.claim", group).every(claim => claim.hidden);
    if (narrowed && !group.hidden && group.matches("details")) group.open = true;
  }
  const shown = claims.filter(claim => !claim.hidden).length;
  one("#none").hidden = shown > 0;
  one("#shown").textContent = `${shown} of ${claims.length} claims shown`;
}

/* Filters and search stand in the address, as #claims&search=…&verdict=…, and are taken from it. */
function save() {
  filter();
  const found = chosen();
  try { history.replaceState(null, "", `#claims${found.size ? `&${found}` : ""}`); } catch { /* the address stays */ }
}

function choose(found) {
  for (const [name, field] of Object.entries(fields)) {
    field.value = found.get(name) ?? "";
    if (field.value !== (found.get(name) ?? "")) field.value = "";
  }
  const verdicts = found.get("verdict")?.split(",");
  for (const box of boxes) box.checked = !verdicts || verdicts.includes(box.value);
  filter();
}

function openTarget() {
  const [name, ...rest] = location.hash.slice(1).split("&");
  let id = name;
  try { id = decodeURIComponent(name); } catch { return; }
  const target = id && document.getElementById(id);
  if (!target) return;
  if (id === "claims" && rest.length) choose(new URLSearchParams(rest.join("&")));
  if (target.hidden) choose(new URLSearchParams());
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  if (!target.matches("details.claim") && !rest.length) return;  /* the browser goes there itself */
  target.scrollIntoView();
  target.querySelector("summary")?.focus({ preventScroll: true });
}

/* A formula or a matrix wider than its place is made smaller. What is still wider can be scrolled with the keyboard. */
const inner = place => place.querySelector(":scope > .formula, :scope > .pair");
function fit(places, smallest) {  /* reads and writes in turns, so that the page is laid out three times and not once a formula */
  const sizes = new Map(places.filter(inner).map(place => [place, 1]));
  for (const place of sizes.keys()) inner(place).style.fontSize = "";
  for (let pass = 0; pass < 2; pass++) {  /* once more, since the width of brackets is not proportional to the size */
    const scales = [...sizes.keys()].map(place => [place, place.clientWidth / place.scrollWidth]);
    for (const [place, scale] of scales.filter(([, scale]) => scale < 1)) {
      sizes.set(place, Math.max(.98 * scale * sizes.get(place), smallest));
      inner(place).style.fontSize = `${sizes.get(place)}em`;
    }
  }
  const wide = places.map(place => place.scrollWidth > place.clientWidth + 1);
  places.forEach((place, k) => {
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", place.dataset.label]])
      wide[k] ? place.setAttribute(name, value) : place.removeAttribute(name);
    const cue = place.previousElementSibling;
    if (cue?.matches(".cue")) cue.hidden = !wide[k];
  });
}
const SMALLEST = .7, SMALLEST_ON_PAPER = .3, widths = new WeakMap();
const places = all(".scroll"), resized = new Set();
function refit() {
  const changed = [...resized].filter(place => place.clientWidth && widths.get(place) !== place.clientWidth);
  resized.clear();
  for (const place of changed) widths.set(place, place.clientWidth);
  fit(changed, SMALLEST);
}
const observer = new ResizeObserver(entries => {
  if (!resized.size) requestAnimationFrame(refit);
  for (const { target } of entries) resized.add(target);
});
for (const place of places) observer.observe(place);

/* What is jumped to stands below the bar of the filters, however high that is. */
const bar = one("#controls");
new ResizeObserver(() => {
  const height = getComputedStyle(bar).position === "sticky" ? bar.offsetHeight : 0;
  document.documentElement.style.setProperty("--bar", `${height}px`);
}).observe(bar);

for (const field of Object.values(fields)) field.addEventListener("input", save);
for (const box of boxes) box.addEventListener("change", save);
one("#reset").addEventListener("click", () => { choose(new URLSearchParams()); save(); });
one("#open").addEventListener("click", () => {
  for (const fold of all("details.claim, details.group")) fold.open = !fold.hidden || fold.open;
});
one("#close").addEventListener("click", () => { for (const details of all("details")) details.open = false; });
{% include "theme.js" %}
document.addEventListener("keydown", event => {
  if (event.key === "/" && !event.target.matches("input, select")) { event.preventDefault(); fields.search.focus(); }
});
addEventListener("hashchange", openTarget);
document.addEventListener("click", event => {  /* a link to where the page already is */
  const link = event.target.closest('a[href^="#"]');
  if (link && link.hash === location.hash) openTarget();
});

/* On paper everything is open but what the machine checked, and is as wide as a page. */
let opened = [];
addEventListener("beforeprint", () => {
  opened = all("details:not([open]):not(.checked)");
  for (const details of opened) details.open = true;
  document.body.classList.add("paper");
  fit(places, SMALLEST_ON_PAPER);
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
  document.body.classList.remove("paper");
  fit(places, SMALLEST);
});

bar.hidden = false;
filter();
openTarget();
