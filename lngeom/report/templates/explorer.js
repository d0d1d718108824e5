{
/* `DATA` comes from lngeom: a small layer, Table 1 as printed, and values to compare with. */
const DATA = {{ content | tojson }};
const form = document.getElementById("explore");
const part = id => document.getElementById(`explore-${id}`);
const value = name => form.elements[name].value;

/* Vectors and matrices. */
const sum = v => v.reduce((s, x) => s + x, 0), mean = v => sum(v) / v.length;
const dot = (u, v) => { let s = 0; for (let i = 0; i < u.length; i++) s += u[i] * v[i]; return s; };
const plus = (u, v, t) => u.map((x, i) => x + t * v[i]);
const times = (t, v) => v.map(x => t * x);
const column = (A, j) => A.map(row => row[j]);
const length = v => Math.sqrt(dot(v, v));
const largest = A => Math.max(...A.flat().map(Math.abs));
const range = n => [...Array(n).keys()];

/* The layer with H units, D inputs and N cases. */
function layer(H, D, N) {
  const { W, X, g, b } = DATA.layer;
  return { W: W.slice(0, H).map(w => w.slice(0, D)), X: X.slice(0, N).map(x => x.slice(0, D)), g: g.slice(0, H), b: b.slice(0, H) };
}

/* n and σ of every case and unit. */
function normalized(norm, { W, X }) {
  const a = X.map(x => W.map(w => dot(w, x)));
  const moments = v => { const m = mean(v); return [m, Math.sqrt(mean(v.map(x => (x - m) ** 2)))]; };
  const units = norm === "ln" ? [] : W.map((w, i) => norm === "bn" ? moments(column(a, i)) : [0, length(w)]);
  return a.map(row => {
    const own = norm === "ln" && moments(row);
    return row.map((x, i) => { const [m, s] = own || units[i]; return [(x - m) / s, s]; });
  });
}

/* z = g n + b. */
const outputs = (norm, L) => normalized(norm, L).map(row => row.map(([n], i) => L.g[i] * n + L.b[i]));

/* A with F = AᵀA, for logistic responses: a row √(λ/N) ∂z_k/∂θ for each case and unit k, θ = [w₁, b₁, g₁, w₂, …].
   Eqs. 13 and 14 as printed take ∂z_k/∂w_i as 0 for k ≠ i. */
function factor(norm, L, printed) {
  const { W, X, g, b } = L, H = W.length, D = W[0].length, N = X.length, rows = [];
  const center = range(D).map(d => mean(column(X, d)));
  const centered = X.map(x => plus(x, center, -1));
  const spread = W.map(w => range(D).map(d => mean(centered.map(x => x[d] * dot(x, w)))));
  normalized(norm, L).forEach((units, c) => units.forEach(([n, s], k) => {
    const p = 1 / (1 + Math.exp(-g[k] * n - b[k])), root = Math.sqrt(p * (1 - p) / N), row = new Float64Array(H * (D + 2));
    const put = (i, v, t) => v.forEach((x, d) => { row[i * (D + 2) + d] = root * g[k] / s * t * x; });
    if (norm === "ln") range(H).forEach(i => (i === k || !printed) && put(i, X[c], (i === k) - (1 + n * units[i][0]) / H));
    if (norm === "bn") put(k, plus(centered[c], spread[k], -n / s), 1);
    if (norm === "wn") put(k, plus(X[c], W[k], -n / s), 1);
    row[k * (D + 2) + D] = root;
    row[k * (D + 2) + D + 1] = root * n;
    rows.push(row);
  }));
  return rows;
}

const gram = A => range(A[0].length).map(i => { const u = column(A, i); return range(A[0].length).map(j => dot(u, column(A, j))); });

/* The R of A = QR, by reflections. */
function triangle(A) {
  const R = A.map(row => Float64Array.from(row)), P = A[0].length;
  for (let j = 0; j < P; j++) {
    const v = column(R.slice(j), j), s = length(v);
    if (!s) continue;
    v[0] += v[0] < 0 ? -s : s;
    const square = dot(v, v);
    for (let k = j; k < P; k++) {
      let t = 0;
      for (let r = 0; r < v.length; r++) t += v[r] * R[j + r][k];
      for (let r = 0; r < v.length; r++) R[j + r][k] -= 2 * t / square * v[r];
    }
  }
  return R.slice(0, P);
}

/* Singular values, descending, by one-sided rotations. Ranks come from these, not from eigenvalues of F. */
function singularValues(A) {
  const R = triangle(A), V = range(R.length).map(j => column(R, j)), floor = 1e-28 * sum(V.map(v => dot(v, v)));
  for (let sweep = 0, turned = true; turned && sweep < 60; sweep++) {
    turned = false;
    for (let p = 0; p < V.length; p++) for (let q = p + 1; q < V.length; q++) {
      const u = V[p], v = V[q], a = dot(u, u), b = dot(v, v), c = dot(u, v);
      if (Math.min(a, b) < floor || Math.abs(c) <= 1e-15 * Math.sqrt(a * b)) continue;
      turned = true;
      const z = (b - a) / (2 * c), t = (z < 0 ? -1 : 1) / (Math.abs(z) + Math.hypot(1, z)), C = 1 / Math.hypot(1, t), S = C * t;
      for (let i = 0; i < u.length; i++) { const x = u[i], y = v[i]; u[i] = C * x - S * y; v[i] = S * x + C * y; }
    }
  }
  return V.map(length).sort((a, b) => b - a);
}
const spectrum = A => singularValues(A).map(s => s * s);
const isNull = (v, all) => v < 1e-18 * all[0];
const nullity = all => all.filter(v => isNull(v, all)).length;

/* A column of Table 1 at size t: factors 2ᵗ, shifts tγ. */
function moved(col, L, t) {
  const key = col.on === "weights" ? "W" : "X", text = x => typeof x === "string";
  return { ...L, [key]: L[key].map((row, r) => {
    const changed = !/[in]/.test(`${col.scale}${col.shift}`) || r === 0;
    return row.map((x, d) => changed ? (text(col.scale) ? 2 ** t : 1) * x + (text(col.shift) ? t * DATA.shift[d] : 0) : x);
  }) };
}
const difference = (A, B) => largest(A.map((row, n) => plus(row, B[n], -1))) / largest(A);

/* Size of the block of F of the weights of unit 1, or of all units, at factor c. */
function block(norm, rows, c) {
  const L = layer(4, 2, 40), F = gram(factor(norm, { ...L, W: L.W.map((w, i) => rows === "all" || !i ? times(c, w) : w) }));
  const own = range(rows === "all" ? 4 : 1).flatMap(i => [4 * i, 4 * i + 1]);
  return length(own.flatMap(i => own.map(j => F[i][j])));
}

/* Directions of W, and the weights at step t along one. */
const DIRECTIONS = {
  scale: W => W,
  shift: W => W.map(() => DATA.shift),
  row: W => W.map((w, i) => times(i ? 0 : 1, w)),
  other: W => DATA.layer.W.slice(3, 3 + W.length).map(w => w.slice(0, 2)),
};
const along = (L, name, t) => { const V = DIRECTIONS[name](L.W); return { ...L, W: L.W.map((w, i) => plus(w, V[i], t)) }; };
function curvature(norm, L, name) {
  const V = DIRECTIONS[name](L.W).flatMap(v => [...v, 0, 0]);
  return sum(factor(norm, L).map(row => dot(row, V) ** 2));
}

/* SGD on a scale-invariant loss in the plane: the gradient is perpendicular to w, of length 1/‖w‖. */
function walk(rate, decay, steps) {
  let w = [1, 0];
  const path = [{ w, square: 1 }];
  for (let k = 0; k < steps; k++) {
    const square = dot(w, w), before = w;
    w = plus(times(1 - rate * decay, w), [-w[1], w[0]], rate / square);
    path.push({ w, square: dot(w, w), angle: Math.atan2(before[0] * w[1] - before[1] * w[0], dot(before, w)) });
  }
  return path;
}

/* A drawing is a list of parts, which become SVG on the page, SVG in a file, or TikZ. */
const LIGHT = { ink: "#1a1d21", quiet: "#565d66", line: "#d5d9df", blue: "#0072b2", orange: "#c25100", green: "#136c34" };
const TEX = { "δ": "\\delta", "γ": "\\gamma", "η": "\\eta", "θ": "\\theta", "‖": "\\|", "×": "\\times" };
const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", LOWERED = "₀₁₂₃";
const n1 = x => +x.toFixed(1);
class Drawing {
  constructor(title, x = 4) { this.parts = []; this.text("quiet", x, 12, title); }
  path(color, points, wide = 1.5, dash = false) { this.parts.push({ kind: "path", color, points, wide, dash }); }
  dot(color, x, y, r = 3, hollow = false) { this.parts.push({ kind: "dot", color, x, y, r, hollow }); }
  text(color, x, y, words, anchor = "start") { this.parts.push({ kind: "text", color, x, y, words, anchor }); }
  box(color, x, y, w, h, opacity = 1) { this.parts.push({ kind: "box", color, x, y, w, h, opacity }); }
  svg(paint) {
    return this.parts.map(p => {
      const c = paint(p.color);
      if (p.kind === "path") return `<polyline ${c} points="${p.points.map(q => q.map(n1)).join(" ")}" fill="none" stroke="currentColor" stroke-width="${p.wide}"${p.dash ? ' stroke-dasharray="4 4"' : ""}/>`;
      if (p.kind === "dot") return `<circle ${c} cx="${n1(p.x)}" cy="${n1(p.y)}" r="${p.r}" fill="${p.hollow ? "none" : "currentColor"}" stroke="currentColor" stroke-width="1.3"/>`;
      if (p.kind === "box") return `<rect ${c} x="${n1(p.x)}" y="${n1(p.y)}" width="${n1(p.w)}" height="${n1(p.h)}" fill="currentColor" fill-opacity="${p.opacity}"/>`;
      return `<text ${c} x="${n1(p.x)}" y="${n1(p.y)}" text-anchor="${p.anchor}" fill="currentColor">${p.words}</text>`;
    }).join("");
  }
  file() {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 340 260" width="340" height="260" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>${this.svg(color => `color="${LIGHT[color]}"`)}</svg>`;
  }
  tikz() {
    const at = (x, y) => `(${n1(x)},${n1(y)})`, plain = (m, from) => [...m].map(c => "0123456789-"[from.indexOf(c)]).join("");
    const words = s => s.replace(/[⁰¹²³⁴-⁹⁻]+/g, m => `$^{${plain(m, RAISED)}}$`).replace(/[₀-₃]+/g, m => `$_{${plain(m, LOWERED)}}$`)
      .replace(/[δγηθ‖×]/g, c => `$${TEX[c]}$`).replaceAll("$$", "");
    const sides = { start: "base west", middle: "base", end: "base east" };
    const line = p => {
      if (p.kind === "path") return `\\draw[ln${p.color}, line width=${p.wide / 2}pt${p.dash ? ", dashed" : ""}] ${p.points.map(q => at(...q)).join(" -- ")};`;
      if (p.kind === "dot") return `\\${p.hollow ? "draw" : "fill"}[ln${p.color}] ${at(p.x, p.y)} circle[radius=${n1(p.r * .7)}pt];`;
      if (p.kind === "box") return `\\fill[ln${p.color}, opacity=${p.opacity}] ${at(p.x, p.y)} rectangle ${at(p.x + p.w, p.y + p.h)};`;
      return `\\node[ln${p.color}, anchor=${sides[p.anchor]}, inner sep=0pt, font=\\scriptsize] at ${at(p.x, p.y)} {${words(p.words)}};`;
    };
    const colors = Object.entries(LIGHT).map(([k, v]) => `\\definecolor{ln${k}}{HTML}{${v.slice(1).toUpperCase()}}`);
    return [...colors, "\\begin{tikzpicture}[x=0.7pt, y=-0.7pt]", ...this.parts.map(line), "\\end{tikzpicture}", ""].join("\n");
  }
}
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
const claim = id => document.getElementById(id) ? `<a href="#${encodeURIComponent(id)}"><code>${id}</code></a>` : `<code>lngeom ${id.startsWith("dynamics.equilibrium") ? "verify --claim" : "prove"} ${id}</code>`;
const say = (id, words, kind, ids) => { part(id).innerHTML = `<b class="k-${kind}">${words}</b> <small>Claim${ids[1] ? "s" : ""}: ${ids.map(claim).join(", ")}</small>`; };
const COLORS = ["blue", "orange", "green"], SUB = "₁₂₃";

/* Weights as arrows and cases as points, before (dashed, rings) and after. */
function plane(id, before, after, says) {
  const d = new Drawing("weights w and cases x; dashed and rings: before"), s = 108 / largest([before, after].flatMap(L => [...L.W, ...L.X])), at = v => [170 + s * v[0], 140 - s * v[1]];
  d.path("line", [[50, 140], [290, 140]], 1); d.path("line", [[170, 25], [170, 255]], 1);
  before.X.forEach((x, n) => { d.dot("quiet", ...at(x), 3, true); d.dot("quiet", ...at(after.X[n]), 1.8); });
  before.W.forEach((w, i) => {
    d.path(COLORS[i], [[170, 140], at(w)], 1.5, true); d.path(COLORS[i], [[170, 140], at(after.W[i])], 2.5);
    const [x, y] = at(after.W[i]);
    d.dot(COLORS[i], x, y, 2.5); d.text(COLORS[i], x + 5, y - 4, `w${SUB[i]}`);
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
    const size = typeof col.scale === "string" ? `δ = ${number(2 ** t)}` : `γ × ${number(t)}`, after = moved(col, small, t), e = change(norm, col, t);
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
    const d = new Drawing("block of F, relative to c = 1; both axes by powers of two"), x = u => 172 + 45 * Math.log2(u), y = v => Math.min(232, Math.max(18, 124 - 17 * Math.log2(v)));
    part("factor").textContent = `c = ${number(c)}`;
    d.path("line", [[30, 124], [314, 124]], 1);
    d.path("orange", [[x(1 / 8), y(8)], [x(8), y(1 / 8)]], 1.5, true); d.path("blue", [[x(1 / 8), y(64)], [x(8), y(1 / 64)]]);
    d.text("orange", 320, 138, "printed: c⁻¹", "end"); d.text("blue", 240, 215, "exact: c⁻²", "end");
    range(7).forEach(e => { const u = 2 ** (e - 3); d.dot("blue", x(u), y(block(norm, rows, u) / base)); d.text("quiet", x(u), 254, e < 3 ? `1/${1 / u}` : `${u}`, "middle"); });
    d.dot("ink", x(c), y(at), 7, true);
    const lawless = norm === "ln" && rows === "one", ids = ["text.factor_half", lawless ? "scaling.no_power_law.ln" : `scaling.${rows === "all" ? "matrix" : "unit"}.${norm}`];
    const words = `At c = ${number(c)} the block is ${number(at)} times as large. The printed statement gives ${number(1 / c)}, the exact law c⁻² ${number(c ** -2)}.`;
    say("half", words + (lawless ? " Neither fits: layer norm sees the scale of a single row." : ""), "blue", ids);
    show("law", d, words);
  },
  fisher() {
    const H = +value("units"), D = +value("inputs"), L = layer(H, D, 40), P = H * (D + 2), names = { printed: "orange", exact: "blue" };
    part("units").textContent = `H = ${H}`; part("inputs").textContent = `D = ${D}`;
    const d = new Drawing("eigenvalues, relative to the largest exact one"), found = {};
    d.path("quiet", [[44, 218], [330, 218]], 1); d.text("quiet", 46, 250, "below the line: zero up to rounding");
    range(7).forEach(e => { d.path("line", [[44, 30 + 30 * e], [330, 30 + 30 * e]], .5); d.text("quiet", 40, 34 + 30 * e, `10${digits(-e)}`, "end"); });
    d.text("orange", 330, 257, "rings: printed", "end"); d.text("blue", 330, 245, "dots: exact", "end");
    for (const name of ["exact", "printed"]) {
      const A = factor("ln", L, name === "printed"), all = found[name] = spectrum(A), F = gram(A), h = new Drawing(name === "exact" ? "exact Fisher matrix" : "Eqs. 13 and 14 as printed", 52), s = 236 / P, top = largest(F);
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
    say("fisher", `${words} The theory gives ${D + 1 + trades}: 1 scale of W, ${D} shifts${trades ? `, ${trades} trades between gains and weights` : ""}.`, n === D + 1 + trades ? "blue" : "alarm", ["equation.13_14.ln", "nullspace.ln"]);
    show("spectrum", d, words);
  },
  null() {
    const norm = value("with"), name = value("along"), t = +value("step"), after = along(small, name, t), bend = curvature(norm, small, name);
    const e = difference(outputs(norm, small), outputs(norm, after)), stays = bend < 1e-24;
    part("step").textContent = `t = ${number(t)}`;
    const words = `δᵀFδ = ${stays ? "0, up to rounding" : number(bend)}. ${!t ? "Move the step." : `At t = ${number(t)} the outputs ${e < 1e-9 ? "stay" : "move"}; largest change, relative: ${number(e)}.`}`;
    say("null", `${stays ? "A null direction" : "Not a null direction"}: ${words}`, stays ? "blue" : "orange", [`nullspace.${norm}`]);
    plane("walk-plane", small, after, `weights before and after a step ${t}`);
    strips("walk-outputs", outputs(norm, small), outputs(norm, after), words);
  },
  rate() {
    const eta = +(10 ** value("rate")).toPrecision(2), lambda = +(10 ** value("decay")).toPrecision(2), runs = { blue: walk(eta, lambda, 300), orange: walk(eta, 0, 300) };
    part("rate").textContent = `η = ${number(eta)}`; part("decay").textContent = `λ = ${number(lambda)}`;
    const rest = Math.sqrt(eta / (lambda * (2 - eta * lambda))), turn = Math.acos(1 - eta * lambda);
    const d = new Drawing("effective learning rate η/‖w‖²"), p = new Drawing("path of w; dashed: where the norm settles with decay"), all = [runs.blue, runs.orange].flat(), widest = Math.sqrt(Math.max(rest, ...all.map(q => q.square)));
    const circle = range(73).map(k => [170 + 112 * Math.sqrt(rest) / widest * Math.cos(k * Math.PI / 36), 142 + 112 * Math.sqrt(rest) / widest * Math.sin(k * Math.PI / 36)]);
    p.path("quiet", circle, 1, true);
    d.text("quiet", 4, 142, "angle of a step θ");
    const curve = (color, values, low, high, top, dash) => {
      const y = v => top + 96 * (1 - (Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low) || 1));
      d.path(color, values.map((v, k) => [60 + 270 * k / (values.length - 1), y(v)]), 1.5, dash);
    };
    [[20, all.map(q => eta / q.square), q => eta / q.square, eta / rest], [150, all.map(q => q.angle).filter(Boolean), q => q.angle, turn]].forEach(([top, every, of, limit]) => {
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
    const words = `After 300 steps a step turns w by ${number(last)} rad with decay; it settles at ${number(turn)}, near √(2ηλ) = ${number(Math.sqrt(2 * eta * lambda))}. Without decay ‖w‖ has grown to ${number(Math.sqrt(free.square))}, and a step turns it by ${number(free.angle)}.`;
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
    own[`${name} F, largest eigenvalue`] = all[0];
    own[`${name} F, smallest positive eigenvalue`] = all.filter(v => !isNull(v, all)).at(-1);
  }
  own["nullity, H = 4, D = 2"] = nullity(spectrum(factor("ln", L)));
  own["nullity, H = 8, D = 2"] = nullity(spectrum(factor("ln", layer(8, 2, 40))));
  own["block of w₁ at 2 w₁, bn"] = block("bn", "one", 2);
  own["block of W at 2 W, ln"] = block("ln", "all", 2);
  const { rate, decay } = DATA.walk, [before, after] = walk(rate, decay, 4000).slice(-2);
  own["angle at rest"] = after.angle;
  own["norm at rest"] = Math.sqrt(before.square);
  return own;
}
function compare() {
  const own = ownValues(), wrong = DATA.values.filter(([name, v]) => !(Math.abs(own[name] - v) <= DATA.tolerance * Math.abs(v))), total = DATA.values.length;
  const box = part("check");
  box.textContent = `${total - wrong.length} of ${total} values agree with lngeom ${DATA.version} to ${DATA.tolerance}.`
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
