r"""Closed formulas for the numbers of symmetries at generic weights, from the description and the shapes alone.

Overlaps are removed: a direction that belongs to several families is counted in the first of `families.FAMILIES`. The
formulas share no code with the tangent vectors of `symmetries`, whose rank must give the same number.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping

from lngeom.transformers.description import Attention, Block, FeedForward, Linear, Mixture, Norm, Stack


def count_symmetries(stack: Stack, shapes: Mapping[str, tuple[int, ...]]) -> Counter[str]:
    """Number of symmetries of each family, by code.

    Args:
        stack: the description.
        shapes: shapes of the arrays by name.

    Returns:
        Codes of `families.FAMILIES` with their numbers; families of none are left out.
    """
    counts = _Counts(stack, shapes)
    counts.embedding()
    for i, block in enumerate(stack.blocks):
        counts.block(i, block)
    counts.head()
    counts.stream()
    return Counter({code: number for code, number in counts.found.items() if number})


def _outputs(part: Linear, shapes: Mapping[str, tuple[int, ...]], inputs: int) -> int:
    if part.rows is not None:
        return part.rows.length * part.rows.count
    return math.prod(shapes[part.weight][part.expert is not None :]) // inputs


def _fibre(inner: int, first: int, second: int) -> int:
    """Dimension of the pairs (inner × first, inner × second) with one product AᵀB, at a generic pair."""
    rank = min(inner, first, second)
    return inner * (first + second) - rank * (first + second - rank)


def _centres(norm: Norm | None) -> int:
    return int(norm is not None and norm.centres)


def _gain(norm: Norm | None) -> int:
    return int(norm is not None and norm.gain is not None)


def _bias(norm: Norm | None) -> int:
    return int(norm is not None and norm.bias is not None)


def _flat(norm: Norm | None) -> int:
    return int(norm is not None and norm.eps == 0)


def _network_bias(branch: FeedForward | Mixture) -> bool:
    """Whether a constant can be added to the branch's output."""
    if isinstance(branch, FeedForward):
        return branch.down.bias is not None
    normalized = branch.renormalize or (branch.scores == "softmax" and branch.top in {None, len(branch.experts)})
    return normalized and all(e.down.bias is not None for e in branch.experts)


class _Counts:
    def __init__(self, stack: Stack, shapes: Mapping[str, tuple[int, ...]]):
        self.stack, self.shapes = stack, shapes
        self.found: Counter[str] = Counter()
        self.d = d = shapes[stack.tables[0].weight][-1]
        self.post = any(b.placing == "post" for b in stack.blocks)
        self.outer = any(b.placing == "outer" for b in stack.blocks)
        reading = [n for b in stack.blocks for n in (b.attention_norm, b.feed_forward_norm) if n is not None]
        self.reading = [] if self.post else [*reading, *([stack.final] if stack.final else [])]
        self.blind = not self.post and not self.outer and all(n.centres for n in self.reading)
        self.width = d - self.blind  # of the stream as its readers see it
        self.last = stack.final or (stack.blocks[-1].feed_forward_norm if self.post and stack.blocks else None)
        transform = stack.head.transform
        self.before_head = self.last if transform is None else transform.norm
        self.uncapped = stack.head.cap is None
        self.token_moves = self.uncapped or not stack.tied  # whether a shift of every token's row is possible
        self.tables = len(stack.tables) - (not self.token_moves)

    # Norms.

    def folded(self, norm: Norm, rows: list[tuple[int, bool, int]]) -> None:
        """A norm whose output only linear maps read: rows are (number, whether their offset settles, hidden ones)."""
        self.found["g"] += self.d * _gain(norm)
        self.rows(norm, rows)
        if _bias(norm):
            stuck = sum(n - hidden for n, settles, hidden in rows if not settles)
            self.found["β"] += self.d if norm.centres else max(0, self.d - stuck)

    def rows(self, norm: Norm | None, rows: list[tuple[int, bool, int]]) -> None:
        """Rows along 1/γ."""
        if _centres(norm):
            self.found["r"] += sum(n if settles or not _bias(norm) else hidden for n, settles, hidden in rows)

    def attention_rows(self, block: Block) -> list[tuple[int, bool, int]]:
        a = block.attention
        keys = a.kv_heads * self.free_keys(a)
        values = a.value.bias is not None or self.carries(block)
        return [
            (a.heads * a.query_width, a.query.bias is not None, 0),
            (a.kv_heads * a.query_width, a.key.bias is not None, keys),
            (a.kv_heads * a.value_width, values, 0),
        ]

    def network_rows(self, branch: FeedForward | Mixture) -> list[tuple[int, bool, int]]:
        return [(_outputs(m, self.shapes, self.d), m.bias is not None, 0) for _, m in branch.readers()]

    def free_keys(self, a: Attention) -> int:
        """Coordinates of one key head whose offset nothing sees."""
        if a.query_norm is not None or a.cap is not None or a.sink is not None:
            return 0
        return self.turning(a)[1]

    @staticmethod
    def turning(a: Attention) -> tuple[list[int], int]:
        """Sizes of the classes of rotary pairs of one frequency, and the number of coordinates that do not turn."""
        if a.rotary is None:
            return [], a.query_width
        sizes: Counter[float] = Counter()
        for frequency in a.rotary.frequencies:
            sizes[round(abs(math.remainder(frequency, 2 * math.pi)), 12)] += 1
        del sizes[0.0]
        return list(sizes.values()), a.query_width - 2 * sum(sizes.values())

    @staticmethod
    def carries(block: Block) -> bool:
        """Whether an offset of values can go into an output bias."""
        beside = block.parallel and block.placing == "pre" and _network_bias(block.feed_forward)
        return block.attention.sink is None and (block.attention.output.bias is not None or beside)

    # Blocks.

    def embedding(self) -> None:
        stack, d = self.stack, self.d
        self.found["unread"] += d * sum(t.offset for t in stack.tables)
        self.found["unread"] += sum(
            len(buckets.unread()) * self.shapes[name][1] for name, buckets in stack.bucket_tables.items()
        )
        norm = stack.embedding_norm
        hidden = self.blind if norm is None else norm.centres
        rows = [self.shapes[t.weight][0] - t.offset for t in stack.tables]
        if hidden:
            self.found["w"] += sum(rows[stack.tied :])
            self.found["s"] += stack.tied and self.uncapped
            head = self.before_head
            if stack.tied and _centres(head) and not _gain(head):
                # A token's row along 1 adds Σβ to its own logit: the head's bias takes it, or β for rows E u.
                every = not _bias(head) or stack.head.map.bias is not None
                self.found["w"] += rows[0] - self.uncapped if every else d
        if norm is not None and self.blind:
            self.found["w"] += _bias(norm)
        self.found["t"] += max(0, self.tables - 1) * (d - hidden)
        if norm is not None and not self.post:
            self.found["cE"] += _flat(norm) and (not stack.tied or _gain(self.before_head))

    def block(self, index: int, block: Block) -> None:
        """All families inside a block, and of the norms at its readers."""
        a, network = block.attention, block.feed_forward
        if block.placing == "post":
            before = self.stack.blocks[index - 1].feed_forward_norm if index else self.stack.embedding_norm
            assert block.attention_norm is not None
            assert block.feed_forward_norm is not None
            self.residual(before, self.attention_rows(block), a.output.bias is not None, block.attention_norm)
            self.residual(
                block.attention_norm, self.network_rows(network), _network_bias(network), block.feed_forward_norm
            )
            outputs = block.attention_norm.centres, block.feed_forward_norm.centres
        elif block.placing == "outer":
            before = None
            self.segments(index, block)
            outputs = _centres(block.attention_writing_norm), _centres(block.feed_forward_writing_norm)
        else:
            before = block.attention_norm
            assert before is not None
            together = self.network_rows(network) if block.shared_norm else []
            self.folded(before, [*self.attention_rows(block), *together])
            if block.feed_forward_norm is not None:
                self.folded(block.feed_forward_norm, self.network_rows(network))
            outputs = tuple(
                self.blind if n is None else n.centres
                for n in (block.attention_writing_norm, block.feed_forward_writing_norm)
            )
        self.writers(block, *outputs)
        self.attention(block, before, self.d - outputs[0])
        self.network(network, before if block.shared_norm else block.feed_forward_norm, block)
        for norm in (block.attention_writing_norm, block.feed_forward_writing_norm):
            if norm is not None:
                self.found["cB"] += _flat(norm)
                self.found["w"] += _bias(norm) and self.blind
        if block.parallel:
            written = _bias(block.attention_writing_norm) and _bias(block.feed_forward_writing_norm)
            added = block.placing == "pre" and a.output.bias is not None and _network_bias(network)
            self.found["p"] += self.width * bool(written or added)

    def residual(self, norm: Norm | None, rows: list[tuple[int, bool, int]], absorbs: bool, after: Norm) -> None:
        """A norm whose output is also the stream, or the tables that are read directly."""
        self.rows(norm, rows)
        settles = all(s or hidden == n for n, s, hidden in rows)
        if norm is None:
            number = self.d if absorbs else after.centres
            self.found["tE"] += number * settles * (self.tables > 0)
        elif _bias(norm) and (norm.centres or settles):
            self.found["β"] += self.d if absorbs else after.centres

    def segments(self, index: int, block: Block) -> None:
        """Shifts of the stream between writing norms, where branches read the stream itself."""
        blocks = self.stack.blocks
        before = blocks[index - 1].feed_forward_writing_norm if index else None
        middle, after = block.attention_writing_norm, block.feed_forward_writing_norm
        for first, start, end, rows in (
            (index == 0, before, middle, self.attention_rows(block)),
            (False, middle, after, self.network_rows(block.feed_forward)),
        ):
            settles = all(s or hidden == n for n, s, hidden in rows)
            begins = self.tables > 0 if first else _bias(start)
            self.found["tE"] += self.d * bool(settles and begins and _bias(end))
        if index == len(blocks) - 1 and _centres(self.last):
            self.found["w"] += _bias(after)

    def writers(self, block: Block, attention: int, network: int) -> None:
        """Columns along 1 of the maps that write."""
        a = block.attention
        self.found["w"] += attention * (a.heads * a.value_width + (a.output.bias is not None))
        experts = block.feed_forward.experts if isinstance(block.feed_forward, Mixture) else (block.feed_forward,)
        for e in experts:
            self.found["w"] += network * (_outputs(e.up, self.shapes, self.d) + (e.down.bias is not None))

    def attention(self, block: Block, norm: Norm | None, out: int) -> None:
        """Families between queries and keys, and between values and outputs."""
        a, d = block.attention, self.d
        n, n_k, m, k, v = a.heads, a.kv_heads, a.group, a.query_width, a.value_width
        inputs = d - _centres(norm)
        free = self.free_keys(a)
        self.found["K"] += n_k * free * (a.key.bias is not None)
        lever = _bias(norm) and _centres(norm)
        loose = a.value.bias is not None or lever
        if a.sink is None and self.carries(block):
            self.found["V"] += n_k * v * (a.value.bias is not None)
        elif a.sink is None and loose:
            rows = self.attention_rows(block)[:2]
            first = self.post and norm is None and self.tables > 0
            through = self.post and (_bias(norm) or first)
            if through and (lever or all(s or hidden == size for size, s, hidden in rows)):
                self.found["V′"] += n_k * v
            else:
                self.found["V′"] += max(0, n_k * v - out)
        asked = int(a.query.bias is not None or _bias(norm))
        keyed = int((a.key.bias is not None or _bias(norm)) and (a.cap is not None or a.sink is not None))
        classes, still = self.turning(a)
        if a.query_norm is None:
            self.found["Q"] += n_k * (
                sum(2 * c * c for c in classes) + _fibre(still, m * (inputs + asked), inputs + keyed)
            )
        else:
            self.normalized(a, norm, classes, still)
        if a.temperature is not None and (a.query_norm is None or _gain(a.query_norm)):
            each = a.query_norm is None or math.prod(self.shapes[a.query_norm.gain or ""]) > k
            self.found["τ"] += n if each else 1
        seen = int((a.value.bias is not None or _bias(norm)) and not self.carries(block))
        self.found["O"] += n_k * _fibre(v, inputs + seen, m * out)
        if a.relative is not None and a.sink is None:
            users = [b.attention for b in self.stack.blocks if b.attention.relative == a.relative]
            self.found["a"] += n * (users[0] is a or users[0] == a)

    def normalized(self, a: Attention, norm: Norm | None, classes: list[int], still: int) -> None:
        """Families of normalized queries and keys."""
        query, key = a.query_norm, a.key_norm
        assert query is not None
        assert key is not None
        n, n_k, k = a.heads, a.kv_heads, a.query_width
        pairs = sum(classes)
        whole = a.norm_over == "all"
        self.found["cQ"] += query_scales(query, 1 if whole else n) + query_scales(key, 1 if whole else n_k)
        if not _gain(query) and not query.centres:
            self.found["Q"] += n_k * (sum(c * c for c in classes) + still * (still - 1) // 2)
        elif not _gain(query) and not pairs:
            self.found["Q"] += n_k * (k - 1) * (k - 2) // 2
        if _gain(query):
            by_head = all(math.prod(self.shapes[g.gain or ""]) > k for g in (query, key))
            self.found["q"] += (n_k if by_head else 1) * (pairs + still)
        if _bias(key) and a.cap is None and a.sink is None:
            self.found["q′"] += still
        if query.centres:
            lost = _centres(norm)
            for heads, part in ((n, a.query), (n_k, a.key)):
                own = part.bias is not None
                self.found["h"] += heads * (self.d - lost * (own or not _bias(norm)) + own)
            if not pairs:
                self.found["q′"] += _bias(query)
                self.found["i"] += _gain(query) and k >= 3

    def network(self, branch: FeedForward | Mixture, norm: Norm | None, block: Block) -> None:
        """Families of hidden units and of the router."""
        degrees = {"relu", "relu2", "identity"}
        for e in branch.experts if isinstance(branch, Mixture) else (branch,):
            sides = (e.gate is not None) + (e.activation in degrees)
            self.found["u"] += sides * _outputs(e.up, self.shapes, self.d)
        if not isinstance(branch, Mixture):
            return
        own, number = branch.router.bias is not None, len(branch.experts)
        constant = branch.renormalize or (branch.scores == "softmax" and number == 1)
        unused = constant and 1 in {branch.top, number}
        if unused or branch.scores == "softmax":
            before = block.attention_norm if block.placing == "post" else norm
            counted = _centres(before) * (own or not _bias(before))
            self.found["s′"] += (number if unused else 1) * (self.d - counted + own)

    def head(self) -> None:
        """The last norm, the head, and a layer between them."""
        stack, head = self.stack, self.stack.head
        rows = _outputs(head.map, self.shapes, self.d)
        own = head.map.bias is not None
        norm = self.before_head
        if head.transform is not None and self.last is not None:
            self.folded(self.last, [(self.d, head.transform.linear.bias is not None, 0)])
        if stack.tied:
            self.found["β"] += self.d * (_bias(norm) and own)
        elif norm is not None:
            self.folded(norm, [(rows, own, 0)])
            counted = norm.centres and (own or not _bias(norm))
            self.found["s"] += self.uncapped * (self.d - counted)
        self.found["s"] += self.uncapped * own

    # The stream as a whole.

    def stream(self) -> None:
        """Scales, rotations and shears of the whole stream, at generic gains."""
        stack, d = self.stack, self.d
        tied, head_gain = stack.tied, _gain(self.before_head)
        if self.post:
            self.post_stream()
            return
        norms = [n for b in stack.blocks for n in (b.attention_writing_norm, b.feed_forward_writing_norm) if n]
        written = [*norms, *([stack.embedding_norm] if stack.embedding_norm else [])]
        bare = [n for n in written if not _gain(n)]
        flat = all(n.eps == 0 for n in self.reading)
        if not bare:
            # Under an embedding norm the table keeps its scale, and the norm's gain takes it.
            self.found["c"] += flat and (not tied or head_gain or stack.embedding_norm is not None)
        obstacles = len(written) - len(bare) + (tied and head_gain) + (tied and stack.head.transform is not None)
        centred = any(n.centres for n in self.reading)
        k = d - centred
        if not obstacles:
            self.found["R"] += k * (k - 1) // 2
        elif obstacles == 1 and not tied and written[0].centres and self.blind:
            self.found["i"] += 1
        if self.outer and len(written) == 2 and all(n.centres for n in written) and _centres(self.last) and not bare:
            self.found["z"] += 1

    def post_stream(self) -> None:
        stack = self.stack
        norms = [n for b in stack.blocks for n in (b.attention_norm, b.feed_forward_norm) if n is not None]
        first, head_gain = stack.embedding_norm, _gain(self.before_head)
        if first is not None:
            self.found["cE"] += _flat(first) and (not stack.tied or head_gain)
            norms = [first, *norms]
        else:
            self.found["c"] += _flat(norms[0]) and (not stack.tied or head_gain)
            self.found["z"] += self.d * (norms[0].centres and not stack.tied)
            self.found["i"] += len(norms) == 2 and norms[0].centres and _gain(norms[0]) and not stack.tied
        # A norm's output grows where the next norm loses the scale.
        self.found["cN"] += sum(_gain(n) and _flat(after) for n, after in itertools.pairwise(norms))


def query_scales(norm: Norm, heads: int) -> int:
    """Scales that a norm of queries or keys loses."""
    return heads * _flat(norm)
