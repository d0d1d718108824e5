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
