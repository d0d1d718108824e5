"""A forward pass in NumPy, one position and one head at a time: slow, and nothing shared with the library's."""

import math

import numpy as np

ACT = {
    "relu": lambda z: max(z, 0.0),
    "relu2": lambda z: max(z, 0.0) ** 2,
    "gelu": lambda z: 0.5 * z * (1 + math.erf(z / math.sqrt(2))),
    "gelu_tanh": lambda z: 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "quick_gelu": lambda z: z / (1 + math.exp(-1.702 * z)),
    "silu": lambda z: z / (1 + math.exp(-z)),
    "tanh": math.tanh,
    "identity": lambda z: z,
}


def act(name, z):
    return np.array([ACT[name](float(v)) for v in z])


def affine(part, w, x):
    if part.columns is not None:  # the others meet zeros
        c, some = part.columns, x
        x = np.zeros(w[part.weight].shape[1 if part.layout == "oi" else 0])
        for i, place in enumerate(c.start + k * c.stride + j for k in range(c.count) for j in range(c.length)):
            x[place] = some[i]
    W = w[part.weight] if part.expert is None else w[part.weight][part.expert]
    b = None if part.bias is None else w[part.bias] if part.expert is None else w[part.bias][part.expert]
    W = W.reshape(len(x), -1).T if part.layout == "io" else W.reshape(-1, len(x))
    out = [sum(W[i, j] * x[j] for j in range(len(x))) + (0.0 if b is None else b[i]) for i in range(len(W))]
    if part.rows is not None:
        r = part.rows
        out = [out[r.start + c * r.stride + i] for c in range(r.count) for i in range(r.length)]
    return np.array(out)


def normalize(part, w, x, head=None):
    if part is None:
        return x
    x = x - sum(x) / len(x) if part.kind == "layer" else x
    square = sum(v * v for v in x) / (1 if part.kind == "l2" else len(x))
    y = x / math.sqrt(square + part.eps)
    gain = np.ones(len(x)) if part.gain is None else part.offset + w[part.gain]
    bias = np.zeros(len(x)) if part.bias is None else w[part.bias]
    if head is not None and gain.size > len(x):
        gain = gain.reshape(-1, len(x))[head]
    return gain * y + bias


def turn(rotary, x, t):
    if rotary is None:
        return x
    y, m = x.copy(), len(rotary.frequencies)
    for p, f in enumerate(rotary.frequencies):
        i, j = (p, p + m) if rotary.pairing == "half" else (2 * p, 2 * p + 1)
        i, j = i + rotary.start, j + rotary.start
        z = complex(x[i], x[j]) * complex(math.cos(t * f), math.sin(t * f)) * rotary.factor
        y[i], y[j] = z.real, z.imag
    return y


def behind(latent, w, X):
    """What maps behind a latent read at each position."""
    return X if latent is None else [normalize(latent.norm, w, affine(latent.linear, w, x)) for x in X]


def heads(a, w, part, norm, count, X, shared=None):
    """[T][head] vectors of queries or keys; of keys, what all heads share comes last."""
    found = []
    for t, x in enumerate(X):
        whole, k = affine(part, w, x), a.query_width
        if shared is not None:
            own = k - len(shared[t])
            whole = np.concatenate([v for h in range(count) for v in (whole[h * own : (h + 1) * own], shared[t])])

        def turned(vector, t=t, k=k):
            return np.concatenate([turn(a.rotary, vector[h * k : (h + 1) * k], t) for h in range(count)])

        whole = turned(whole) if a.rotary_first else whole
        if norm is not None and a.norm_over == "all":
            whole = normalize(norm, w, whole)
        elif norm is not None:
            whole = np.concatenate([normalize(norm, w, whole[h * k : (h + 1) * k], h) for h in range(count)])
        whole = whole if a.rotary_first else turned(whole)
        vectors = [whole[h * k : (h + 1) * k] for h in range(count)]
        found.append(vectors)
    return found


def attend(a, w, X):
    asked, given = behind(a.query_latent, w, X), behind(a.kv_latent, w, X)
    shared = None if a.shared_key is None else [affine(a.shared_key, w, x) for x in X]
    Q = heads(a, w, a.query, a.query_norm, a.heads, asked)
    K = heads(a, w, a.key, a.key_norm, a.kv_heads, given, shared)
    V = [affine(a.value, w, x) for x in given]
    out = []
    for t in range(len(X)):
        joined = []
        for h in range(a.heads):
            g = h * a.kv_heads // a.heads
            terms = []
            for s in range(len(X)):
                if (a.causal and s > t) or (a.window is not None and abs(t - s) >= a.window):
                    continue
                z = float(Q[t][h] @ K[s][g]) * (a.scale if a.scale is not None else 1 / math.sqrt(a.query_width))
                if a.temperature:
                    z *= w[a.temperature][h]
                if a.cap:
                    z = a.cap * math.tanh(z / a.cap)
                if a.alibi:
                    z -= a.alibi[h] * (t - s)
                if a.relative:
                    z += w[a.relative][h, abs(t - s)] if a.buckets is None else w[a.relative][bucket(a, s - t), h]
                terms.append((s, math.exp(z)))
            total = sum(e for _, e in terms) + (math.exp(w[a.sink][h]) if a.sink else 0.0)
            v = a.value_width
            joined.append(sum(e / total * V[s][g * v : (g + 1) * v] for s, e in terms))
        out.append(affine(a.output, w, np.concatenate(joined)))
    return out


def bucket(a, away):
    """The row of a relative position, as T5 says it."""
    half = a.buckets.count // 2
    exact, row = half // 2, abs(away)
    if row >= exact:
        steps = math.log(row / exact) / math.log(a.buckets.largest / exact) * (half - exact)
        row = min(exact + int(steps + 1e-9), half - 1)
    return row + (half if away > 0 else 0)


def row_of(table, w, i):
    """One row of a table, in whatever layout it is stored."""
    array = w[table.weight]
    if table.layout == "columns":
        return np.array([part.reshape(-1)[i] for part in array])
    return array.reshape(-1, array.shape[-1])[i]


def fronted(front, w, inputs):
    """What a front end writes at each position, one output and one input at a time."""
    channels = w[front.layers[0].linear.weight].shape[1]
    strides = [layer.stride for layer in front.layers]
    if not np.ndim(inputs[0]):
        inputs = [[float(i == j) for j in range(math.prod(strides) * channels)] for i in inputs]
    X = [list(vector[i : i + channels]) for vector in inputs for i in range(0, len(vector), channels)]
    for layer, stride in zip(front.layers, strides, strict=True):
        W, found = w[layer.linear.weight], []
        for t in range(0, len(X), stride):
            z = np.zeros(len(W)) if layer.linear.bias is None else w[layer.linear.bias].copy()
            for o in range(len(W)):
                for c in range(W.shape[1]):
                    for j in range(W.shape[2]):
                        at = t + j - W.shape[2] // 2
                        z[o] += W[o, c, j] * X[at][c] if 0 <= at < len(X) else 0.0
            found.append(act(layer.activation, z))
        X = found
    return X


def begun(stack, w, tokens, types):
    """The stream before the first block, but for a norm."""
    lead = next((table for table in stack.tables if table.index == "leading"), None)
    before = 0 if lead is None else w[lead.weight].size // w[lead.weight].shape[-1]
    X, front = [], None if stack.front is None else fronted(stack.front, w, tokens)
    for t in range(before + len(tokens)):
        x = 0.0 if front is None else front[t]
        for table in stack.tables:
            rows = {"position": t, "leading": t}
            if t >= before:
                rows = {"token": tokens[t - before], "type": types[t - before], "position": t, "input": 0, "patch": 0}
            elif table.index != "position":
                rows = {"leading": t}
            if (t >= before and table.index == "leading") or table.index not in rows:
                continue
            if table.index == "patch" and np.ndim(tokens[0]):
                parts = [v * row_of(table, w, i) for i, v in enumerate(tokens[t - before])]
                x = x + table.scale * sum(parts)
                continue
            i = tokens[t - before] if table.index == "patch" else rows[table.index]
            x = x + table.scale * row_of(table, w, i + table.offset)
        X.append(x)
    return X


def feed(f, w, x):
    if not hasattr(f, "experts"):
        up = affine(f.up, w, x)
        gate = None if f.gate is None else affine(f.gate, w, x)
        if f.clamp is not None:
            gate = np.array([min(v, f.clamp) for v in gate])
            up = np.array([max(-f.clamp, min(v, f.clamp)) + 1 for v in up])
        inner = act(f.activation, up) if gate is None else act(f.activation, gate) * up
        return affine(f.down, w, inner)
    z = affine(f.router, w, x)
    scores = np.exp(z) / np.exp(z).sum() if f.scores == "softmax" else 1 / (1 + np.exp(-z))
    liked = z if f.choice_bias is None and f.groups is None else scores + (w[f.choice_bias] if f.choice_bias else 0)
    open_ = range(len(z))
    if f.groups is not None:
        size = len(z) // f.groups.count
        members = [range(g * size, (g + 1) * size) for g in range(f.groups.count)]
        worth = [sum(sorted(liked[e] for e in group)[-f.groups.best :]) for group in members]
        best = sorted(range(f.groups.count), key=lambda g: -worth[g])[: f.groups.top]
        open_ = [e for g in best for e in members[g]]
    used = sorted(open_, key=lambda e: -liked[e])[: f.top or len(z)]
    total = sum(scores[e] for e in used) if f.renormalize else 1.0
    out = f.factor * sum(scores[e] / total * feed(f.experts[e], w, x) for e in used)
    if f.shared is not None:
        share = 1.0 if f.shared_gate is None else 1 / (1 + math.exp(-float(affine(f.shared_gate, w, x)[0])))
        out = out + share * feed(f.shared, w, x)
    return out


def logits(stack, w, tokens, types):
    w = {name: np.asarray(value, float) for name, value in w.items()}
    X = begun(stack, w, tokens, types)
    X = [normalize(stack.embedding_norm, w, x) for x in X]
    for b in stack.blocks:
        if b.placing == "post":
            X = [normalize(b.attention_norm, w, x + y) for x, y in zip(X, attend(b.attention, w, X), strict=True)]
            X = [normalize(b.feed_forward_norm, w, x + feed(b.feed_forward, w, x)) for x in X]
            continue
        Y = attend(b.attention, w, [normalize(b.attention_norm, w, x) for x in X])
        Y = [y if b.attention_scale is None else w[b.attention_scale] * y for y in Y]
        Y = [normalize(b.attention_writing_norm, w, y) for y in Y]
        middle = X if b.parallel else [x + b.factor * y for x, y in zip(X, Y, strict=True)]
        before = b.attention_norm if b.parallel and b.feed_forward_norm is None else b.feed_forward_norm
        Z = [
            normalize(b.feed_forward_writing_norm, w, feed(b.feed_forward, w, normalize(before, w, x))) for x in middle
        ]
        Z = [z if b.feed_forward_scale is None else w[b.feed_forward_scale] * z for z in Z]
        X = [x + b.factor * (y + z) for x, y, z in zip(X, Y, Z, strict=True)]
    X = [normalize(stack.final, w, x) for x in X]
    if (t := stack.head.transform) is not None:
        X = [normalize(t.norm, w, act(t.activation, affine(t.linear, w, x))) for x in X]
    if stack.head.linear is None:
        return np.array(X)
    out = [affine(stack.head.linear, w, x) for x in (X[:1] if stack.head.reads == "first" else X)]
    if stack.head.mean is not None:
        out = [out[0] + affine(stack.head.mean, w, sum(X[1:]) / (len(X) - 1))]
    out = stack.head.scale * np.array(out)
    return out if stack.head.cap is None else stack.head.cap * np.tanh(out / stack.head.cap)
