{
/* `DATA` comes from lngeom: a small layer, Table 1 as printed, and values to compare with. */
const DATA = {{ content | tojson }};
const form = document.getElementById("explore");
const part = id => document.getElementById(`explore-${id}`);
const value = name => form.elements[name].value;

{% include "explorer.math.js" %}
{% include "explorer.drawing.js" %}
const drawings = {};
for (const figure of form.querySelectorAll("figure")) {
  const { id, label } = figure.dataset, button = words => `<button type="button" data-of="${id}" aria-label="${words}: ${label}">${words}</button> `;
  figure.innerHTML = `<svg id="explore-${id}" viewBox="0 0 340 260" role="img"></svg>${button("Save SVG")}${button("Copy TikZ")}<textarea id="explore-${id}-tikz" aria-label="TikZ: ${label}" readonly hidden></textarea>`;
}
part("cells").innerHTML = `<thead><tr><td></td>${Object.values(DATA.norms).map(title => `<th scope="col">${title}</th>`).join("")}</tr></thead><tbody>${DATA.columns.map(c =>
  `<tr><th scope="row"><b>${c.heading}</b> ${c.title}</th>${Object.entries(DATA.norms).map(([norm, title]) =>
    `<td><label id="explore-${norm}-${c.name}"><input type="radio" name="cell" value="${norm}.${c.name}" aria-label="${title}, ${c.title}"><span></span></label></td>`).join("")}</tr>`).join("")}</tbody>`;
form.elements.cell.value = "ln.weight_vector_rescaling";
function show(id, drawing, says) {
  drawings[id] = drawing;
  const svg = part(id);
  svg.innerHTML = drawing.svg(color => `class="k-${color}"`);
  svg.setAttribute("aria-label", says);
}
const digits = s => String(s).replace(/[-\d]/g, c => RAISED[c === "-" ? 10 : c]);
function number(x) {
  if (x === 0 || Math.abs(x) >= 1e-3 && Math.abs(x) < 1e4) return String(+x.toPrecision(3));
  const [m, e] = x.toExponential(0).split("e");
  return `${m} × 10${digits(+e)}`;
}
const claim = id => document.getElementById(id) ? `<a href="#${encodeURIComponent(id)}"><code>${id}</code></a>`
  : `<code>lngeom ${id.startsWith("dynamics.equilibrium") ? "verify --claim" : "prove"} ${id}</code>`;
const say = (id, words, kind, ids) => {
  part(id).innerHTML = `<b class="k-${kind}">${words}</b> <small>Claim${ids[1] ? "s" : ""}: ${ids.map(claim).join(", ")}</small>`;
};
const COLORS = ["blue", "orange", "holds"], SUB = "₁₂₃";

/* Weights as arrows and cases as points, before (dashed, rings) and after. */
function plane(id, before, after, says) {
  const d = new Drawing("weights w and cases x; dashed and rings: before"),
    s = 108 / largest([before, after].flatMap(L => [...L.W, ...L.X])), at = v => [170 + s * v[0], 140 - s * v[1]];
  d.path("line", [[50, 140], [290, 140]], 1); d.path("line", [[170, 25], [170, 255]], 1);
  before.X.forEach((x, n) => { d.dot("quiet", ...at(x), 3, true); d.dot("quiet", ...at(after.X[n]), 1.8); });
  before.W.forEach((w, i) => {
    d.path(COLORS[i], [[170, 140], at(w)], 1.5, true); d.path(COLORS[i], [[170, 140], at(after.W[i])], 2.5);
    const [x, y] = at(after.W[i]);
    d.dot(COLORS[i], x, y, 2.5); d.text(COLORS[i], x + (x < 170 ? -5 : 5), y + (y > 140 ? 12 : -4), `w${SUB[i]}`, x < 170 ? "end" : "start");
  });
  show(id, d, says);
}

/* Outputs of each unit, a case a line, before (rings) and after. */
function strips(id, before, after, says) {
  const d = new Drawing("outputs, a case a line; rings: before"), s = 128 / Math.max(largest(before), largest(after)), x = v => 190 + s * v;
  range(before[0].length).forEach(i => {
    const top = 26 + 79 * i;
    d.text(COLORS[i], 4, top + 36, `unit ${i + 1}`);
    d.path("line", [[190, top], [190, top + 68]], 1);
    before.forEach((row, n) => {
      const y = top + 6 + 9.5 * n;
      d.path(COLORS[i], [[x(row[i]), y], [x(after[n][i]), y]], 1);
      d.dot(COLORS[i], x(row[i]), y, 4.2, true); d.dot(COLORS[i], x(after[n][i]), y, 2.2);
    });
  });
  show(id, d, says);
}

const small = layer(3, 2, 7);
const drawn = {
  table() {
    const [norm, name] = value("cell").split("."), t = +value("size"), col = DATA.columns.find(c => c.name === name);
    const change = (m, c, u) => { const L = moved(c, small, u); return difference(outputs(m, small), outputs(m, L)); };
    let same = 0;
    for (const m in DATA.norms) for (const c of DATA.columns) {
      const invariant = change(m, c, 1) < 1e-9, cell = part(`${m}-${c.name}`);
      same += invariant === DATA.paper[m][c.name];
      cell.className = invariant ? "yes" : "no";
      cell.lastElementChild.textContent = invariant ? "Invariant" : "No";
    }
    const size = typeof col.scale === "string" ? `δ = ${number(2 ** t)}` : `γ × ${number(t)}`;
    const after = moved(col, small, t), e = change(norm, col, t);
    part("size").textContent = size;
    const text = !t ? "Nothing is changed yet: move the size." : `${DATA.norms[norm]}, ${col.heading}, ${size}: outputs ${e < 1e-9 ? "stay" : "move"}; largest change, relative: ${number(e)}.`;
    say("table", `${text}${t ? e < 1e-9 ? " Invariant." : " Not invariant." : ""}`, t && e >= 1e-9 ? "orange" : "blue", [`table1.${norm}.${name}`]);
    part("count").textContent = `${same} of 18 cells are as in the paper's Table 1.`;
    part("count").classList.toggle("alarm", same < 18);
    plane("plane", small, after, `weights and cases before and after ${col.title.toLowerCase()}`);
    strips("outputs", outputs(norm, small), outputs(norm, after), text);
  },
  half() {
    const norm = value("of"), rows = value("rows"), c = 2 ** value("factor"), base = block(norm, rows, 1), at = block(norm, rows, c) / base;
    const d = new Drawing("block of F, relative to c = 1; both axes by powers of two");
    const x = u => 172 + 45 * Math.log2(u), y = v => Math.min(232, Math.max(18, 124 - 17 * Math.log2(v)));
    part("factor").textContent = `c = ${number(c)}`;
    d.path("line", [[30, 124], [314, 124]], 1);
    d.path("orange", [[x(1 / 8), y(8)], [x(8), y(1 / 8)]], 1.5, true); d.path("blue", [[x(1 / 8), y(64)], [x(8), y(1 / 64)]]);
    d.text("orange", 320, 138, "printed: c⁻¹", "end"); d.text("blue", 240, 215, "exact: c⁻²", "end");
    range(7).forEach(e => {
      const u = 2 ** (e - 3);
      d.dot("blue", x(u), y(block(norm, rows, u) / base));
      d.text("quiet", x(u), 254, e < 3 ? `1/${1 / u}` : `${u}`, "middle");
    });
    d.dot("ink", x(c), y(at), 7, true);
    const lawless = norm === "ln" && rows === "one";
    const ids = ["text.factor_half", lawless ? "scaling.no_power_law.ln" : `scaling.${rows === "all" ? "matrix" : "unit"}`];
    const words = `At c = ${number(c)} the block is ${number(at)} times as large. The printed statement gives ${number(1 / c)}, the exact law c⁻² ${number(c ** -2)}.`;
    say("half", words + (lawless ? " Neither fits: layer norm sees the scale of a single row." : ""), "blue", ids);
    show("law", d, words);
  },
  fisher() {
    const H = +value("units"), D = +value("inputs"), L = layer(H, D, 40), P = H * (D + 2), names = { printed: "orange", exact: "blue" };
    part("units").textContent = `H = ${H}`; part("inputs").textContent = `D = ${D}`;
    const d = new Drawing("eigenvalues, relative to the largest exact one"), found = {};
    d.path("quiet", [[44, 218], [330, 218]], 1); d.text("quiet", 46, 250, "below the line: zero up to rounding");
    range(7).forEach(e => {
      d.path("line", [[44, 30 + 30 * e], [330, 30 + 30 * e]], .5);
      d.text("quiet", 40, 34 + 30 * e, `10${digits(-e)}`, "end");
    });
    d.text("orange", 330, 257, "rings: printed", "end"); d.text("blue", 330, 245, "dots: exact", "end");
    for (const name of ["exact", "printed"]) {
      const A = factor("ln", L, name === "printed"), all = found[name] = spectrum(A), F = gram(A), s = 236 / P, top = largest(F);
      const h = new Drawing(name === "exact" ? "exact Fisher matrix" : "Eqs. 13 and 14 as printed", 52);
      F.forEach((row, i) => {
        const level = v => Math.abs(v) < 1e-4 * top ? 0 : Math.sign(v) * Math.ceil(5 + 1.25 * Math.log10(Math.abs(v) / top) || .1);
        for (let j = 0, k; j < P; j = k) {
          const v = level(row[j]);
          for (k = j + 1; k < P && level(row[k]) === v;) k++;
          if (v) h.box(v > 0 ? "blue" : "orange", 52 + j * s, 20 + i * s, (k - j) * s, s, Math.abs(v) / 5);
        }
      });
      h.path("quiet", [[52, 20], [288, 20], [288, 256], [52, 256], [52, 20]], 1);
      show(name, h, `${name} Fisher matrix, ${P} by ${P}`);
      all.forEach((v, i) => {
        const y = isNull(v, all) ? 228 : Math.min(210, 30 - 30 * Math.log10(v / found.exact[0]));
        d.dot(names[name], 44 + 286 * (i + .5) / P, y, name === "exact" ? 2.5 : 4, name === "printed");
      });
    }
    const r = Math.min(D, H - 1), n = nullity(found.exact), trades = Math.max(0, H - r * (r + 3) / 2);
    const words = `${n} of ${P} eigenvalues of the exact matrix are zero, ${nullity(found.printed)} of the printed one.`;
    say("fisher", `${words} The theory gives ${D + 1 + trades}: 1 scale of W, ${D} shifts${trades ? `, ${trades} trades between gains and weights` : ""}.`,
      n === D + 1 + trades ? "blue" : "alarm", ["equation.13_14.ln", "nullspace.ln"]);
    show("spectrum", d, words);
  },
  null() {
    const norm = value("with"), name = value("along"), t = +value("step"), after = along(small, name, t), bend = curvature(norm, small, name);
    const e = difference(outputs(norm, small), outputs(norm, after)), stays = bend < 1e-24;
    part("step").textContent = `t = ${number(t)}`;
    const words = `δᵀFδ = ${stays ? "0, up to rounding" : number(bend)}. ${
      !t ? "Move the step." : `At t = ${number(t)} the outputs ${e < 1e-9 ? "stay" : "move"}; largest change, relative: ${number(e)}.`}`;
    say("null", `${stays ? "A null direction" : "Not a null direction"}: ${words}`, stays ? "blue" : "orange", [`nullspace.${norm}`]);
    plane("walk-plane", small, after, `weights before and after a step ${t}`);
    strips("walk-outputs", outputs(norm, small), outputs(norm, after), words);
  },
  rate() {
    const eta = +(10 ** value("rate")).toPrecision(2), lambda = +(10 ** value("decay")).toPrecision(2);
    const runs = { blue: walk(eta, lambda, 300), orange: walk(eta, 0, 300) };
    part("rate").textContent = `η = ${number(eta)}`; part("decay").textContent = `λ = ${number(lambda)}`;
    const rest = Math.sqrt(eta / (lambda * (2 - eta * lambda))), turn = Math.acos(1 - eta * lambda);
    const d = new Drawing("effective learning rate η/‖w‖²"), p = new Drawing("path of w; dashed: where the norm settles with decay");
    const all = [runs.blue, runs.orange].flat(), widest = Math.sqrt(Math.max(rest, ...all.map(q => q.square)));
    const circle = range(73).map(k => times(112 * Math.sqrt(rest) / widest, [Math.cos(k * Math.PI / 36), Math.sin(k * Math.PI / 36)]))
      .map(([x, y]) => [170 + x, 142 + y]);
    p.path("quiet", circle, 1, true);
    d.text("quiet", 4, 142, "angle of a step θ");
    const curve = (color, values, low, high, top, dash) => {
      const y = v => top + 96 * (1 - (Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low) || 1));
      d.path(color, values.map((v, k) => [60 + 270 * k / (values.length - 1), y(v)]), 1.5, dash);
    };
    [[20, q => eta / q.square, eta / rest], [150, q => q.angle, turn]].forEach(([top, of, limit]) => {
      const every = all.map(of).filter(Boolean);
      const low = Math.min(limit, ...every), high = Math.max(limit, ...every);
      d.path("line", [[60, top - 2], [60, top + 98], [330, top + 98]], 1);
      d.text("quiet", 56, top + 10, number(high), "end"); d.text("quiet", 56, top + 98, number(low), "end");
      curve("quiet", [limit, limit], low, high, top, true);
      for (const color in runs) curve(color, runs[color].slice(1).map(of), low, high, top);
    });
    for (const color in runs) {
      p.path(color, runs[color].map(q => [170 + 112 * q.w[0] / widest, 142 - 112 * q.w[1] / widest]), 1.2);
      p.text(color, 4, color === "blue" ? 240 : 254, color === "blue" ? "with weight decay" : "without");
    }
    const last = runs.blue.at(-1).angle, free = runs.orange.at(-1);
    const words = `After 300 steps a step turns w by ${number(last)} rad with decay; it settles at ${number(turn)}, near √(2ηλ) = ${number(Math.sqrt(2 * eta * lambda))}.`
      + ` Without decay ‖w‖ has grown to ${number(Math.sqrt(free.square))}, and a step turns it by ${number(free.angle)}.`;
    say("rate-words", words, "blue", ["dynamics.sgd_norm_growth", "dynamics.equilibrium.sgd"]);
    show("path", p, "paths of w with and without weight decay"); show("curves", d, words);
  },
};

/* The same values by this page. */
function ownValues() {
  const own = {}, L = layer(4, 2, 40), z = (norm, M) => outputs(norm, M)[2][1], find = name => DATA.columns.find(c => c.name === name);
  for (const [norm, name] of DATA.moves) {
    own[`output, ${norm}`] = z(norm, small);
    own[`output, ${norm}, ${name}`] = outputs(norm, moved(find(name), small, 1))[0][0];
  }
  for (const [name, printed] of [["exact", false], ["printed", true]]) {
    const A = factor("ln", L, printed), F = gram(A), all = spectrum(A);
    own[`${name} F, Frobenius norm`] = length(F.flat());
    own[`${name} F, entry 1, 2`] = F[0][1];
    if (!printed) own["exact F, largest eigenvalue"] = all[0];
    own[`${name} F, smallest positive eigenvalue`] = all.filter(v => !isNull(v, all)).at(-1);
  }
  own["nullity, H = 4, D = 2"] = nullity(spectrum(factor("ln", L)));
  own["nullity, H = 8, D = 2"] = nullity(spectrum(factor("ln", layer(8, 2, 40))));
  for (const norm of ["bn", "wn"]) own[`block of w₁ at 2 w₁, ${norm}`] = block(norm, "one", 2);
  own["block of W at 2 W, ln"] = block("ln", "all", 2);
  const { rate, decay } = DATA.walk, [before, after] = walk(rate, decay, 4000).slice(-2);
  own["angle at rest"] = after.angle;
  own["norm at rest"] = Math.sqrt(before.square);
  return own;
}
function compare() {
  const own = ownValues(), total = DATA.values.length;
  const wrong = DATA.values.filter(([name, v]) => !(Math.abs(own[name] - v) <= DATA.tolerance * Math.abs(v)));
  const box = part("check");
  box.textContent = `${total - wrong.length} of ${total} values agree with lngeom ${DATA.version} to 10${digits(Math.round(Math.log10(DATA.tolerance)))}.`
    + (wrong.length ? ` Do not trust this page. ${wrong.map(([name, v]) => `${name}: ${own[name]} here, ${v} by lngeom`).join("; ")}.` : "");
  box.classList.toggle("alarm", wrong.length > 0);
}

function save() { try { history.replaceState(null, "", `#explore&${new URLSearchParams(new FormData(form))}`); } catch { /* the address stays */ } }
function restore() {
  if (!location.hash.startsWith("#explore")) return;
  for (const [name, v] of new URLSearchParams(location.hash.slice(9))) if (form.elements[name]) form.elements[name].value = v;
  const hidden = form.closest("details");
  if (hidden) hidden.open = true;
}
function draw(name) {
  drawn[name]();
  for (const input of form.querySelectorAll("input[type=range]")) input.setAttribute("aria-valuetext", part(input.name).textContent);
}
form.addEventListener("input", event => draw(event.target.closest("section").dataset.draw));
form.addEventListener("change", save);
form.addEventListener("click", async event => {
  const button = event.target.closest("button");
  if (!button) return;
  const id = button.dataset.of, drawing = drawings[id];
  if (button.textContent === "Save SVG") {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([drawing.file()], { type: "image/svg+xml" }));
    link.download = `lngeom-${id}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    return;
  }
  const label = button.textContent, box = part(`${id}-tikz`);
  try { await navigator.clipboard.writeText(drawing.tikz()); button.textContent = "Copied"; setTimeout(() => { button.textContent = label; }, 1500); }
  catch { box.hidden = false; box.value = drawing.tikz(); box.select(); }
});
addEventListener("hashchange", () => { restore(); Object.keys(drawn).forEach(draw); });
restore();
Object.keys(drawn).forEach(draw);
compare();
}
