r"""Channel scales: outputs of a norm, of values or of hidden units divided by s, and columns of their readers times s.

W(x / s ⊙ s) = Wx. SmoothQuant and AWQ choose s so that activations, or the weights that matter, are easier to
quantize. Whatever chose it, the function stays the same where every reader takes its part.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lngeom.transformers.description import Attention, FeedForward, Head, Linear, Norm, Site, Stack
from lngeom.transformers.parts import shown
from lngeom.transformers.rewrite.array_files import read_header
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.step import (
    AbstractStep,
    Obstacle,
    attentions,
    bias,
    did_you_mean,
    gain,
    networks,
    norm_width,
    not_homogeneous,
    shared_arrays,
    units,
)

LEAST = 1e-5
"""Smallest scale, and smallest weight that counts, as of SmoothQuant."""


class Place(NamedTuple):
    """Where channels can be scaled.

    Attributes:
        site: the norm, the map to the values, or the map to the hidden units.
        count: how many channels it has.
        readers: the maps whose columns are the channels.
        inner: the attention or the network that holds values or units; None at a norm.
    """

    site: Site
    count: int
    readers: tuple[Site, ...]
    inner: Attention | FeedForward | None = None

    @property
    def names(self) -> Iterator[str]:
        """What it may be called: its path, its array, its module."""
        part = self.site.part
        array = part.gain if isinstance(part, Norm) else part.weight
        yield from filter(None, (self.site.path, array, array and array.removesuffix(".weight")))


def places(stack: Stack, draft: Draft) -> Iterator[Place]:
    """Norms that only linear maps read, values, and hidden units, in order."""
    for norm in stack.norms:
        space = stack.output_space(norm)
        if not space.residual and not any(isinstance(reader.part, Norm | Head) for reader in space.readers):
            yield Place(norm, norm_width(stack, draft, norm), tuple(space.readers))
    for path, a in attentions(stack):
        yield Place(Site(f"{path}.value", a.value), a.kv_heads * a.value_width, (Site(f"{path}.output", a.output),), a)
    for path, net in networks(stack):
        yield Place(Site(f"{path}.up", net.up), units(net, draft), (Site(f"{path}.down", net.down),), net)


@dataclass(frozen=True, eq=False)
class ScaleChannels(AbstractStep):
    r"""Folds given scales s of channels into the arrays around them.

    - A norm: γ ← γ / s, β ← β / s; W ← W diag(s) for all its readers, routers included.
    - Values: W_V ← diag(1/s) W_V, b_V ← b_V / s; W_O ← W_O diag(s) for every query head of the group.
    - Hidden units, of ReLU, ReLU² or beside a gate: w₁, b₁ ← w₁/s, b₁/s; w₂ ← w₂ s (w₂ s² for ReLU²).
      Without a gate s > 0.

    Attributes:
        scales: s by place: by path ("blocks.0.attention_norm", "blocks.0.attention.value", "blocks.0.feed_forward.up"),
            by the name of the array ("model.layers.0.input_layernorm.weight"), or by that without ".weight".
    """

    scales: Mapping[str, Any]
    word = "scale-channels"
    identity = "W diag(s) (x / s) = W x, for every reader of the channels x"

    def __post_init__(self) -> None:
        if not isinstance(self.scales, Mapping) or not self.scales:
            raise TypeError(f"scales must be a dict from places to vectors; got {shown(self.scales)}")

    def _found(self, stack: Stack, draft: Draft) -> Iterator[tuple[Place, np.ndarray]]:
        """Each place with its scales.

        Raises:
            ValueError: naming what is no place, or no vector of finite scales other than zero.
        """
        known: dict[str, tuple[Place, ...]] = {}
        for place in places(stack, draft):
            known |= {name: (*known.get(name, ()), place) for name in dict.fromkeys(place.names)}
        taken: dict[str, str] = {}
        for name, given in self.scales.items():
            if name not in known:
                raise ValueError(_unknown(name, known))
            if len(known[name]) > 1:
                paths = ", ".join(place.site.path for place in known[name][:3])
                raise ValueError(f"{name!r} is the array of {len(known[name])} places: name a path, such as {paths}")
            place, s = known[name][0], _vector(f"scales of {name!r}", given)
            if (first := taken.setdefault(place.site.path, name)) != name:
                raise ValueError(f"{first!r} and {name!r} are the same channels: give their scales once")
            if s.shape != (place.count,):
                raise ValueError(f"{name!r} has {place.count} channels; got scales of shape {s.shape}")
            if not s.all():
                raise ValueError(f"scales must not be zero; those of {name!r} hold 0")
            yield place, s

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Norms without a gain, shared arrays, activations that are not homogeneous, scales of units below zero."""
        found = []
        for place, s in self._found(stack, draft):
            part, where = place.site.part, str(place.site)
            if isinstance(part, Norm):
                if part.gain is None:
                    found.append(
                        Obstacle(
                            where, "it has no gain that could take 1/s", "Scale channels before gains are left out."
                        )
                    )
            elif isinstance(place.inner, FeedForward):
                found += not_homogeneous(place.site.path.removesuffix(".up"), place.inner)
                if (s < 0).any() and place.inner.gate is None and place.inner.activation != "identity":
                    found.append(Obstacle(where, "a scale is negative, and its activation sees the sign", ""))
            found += shared_arrays(stack, place.site, place.readers)
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Scales each place."""
        for place, s in self._found(stack, draft):
            scale(place, s, draft)
        return stack


def _unknown(name: Any, known: Mapping[str, tuple[Place, ...]]) -> str:
    """That nothing is called so, and what may have been meant."""
    networks_at = {
        name.rpartition(".")[0]
        for name, (place, *_) in known.items()
        if isinstance(place.inner, FeedForward) and place.inner.gate is None and name != place.site.path
    }
    paths = list(dict.fromkeys(place.site.path for found in known.values() for place in found))
    words = (
        f"no channels are called {name!r}{did_you_mean(str(name), known)}: scales belong to norms that only linear "
        f"maps read, to values and to hidden units, such as {', '.join(paths[:3])}"
    )
    if str(name).rpartition(".")[0] in networks_at:
        words += (
            ". An activation, as AWQ names it in networks without a gate, takes no scales: it is not homogeneous, and "
            "no change of arrays does the same"
        )
    return words


def scale(place: Place, s: np.ndarray, draft: Draft) -> None:
    """Divides the channels of a place by s [channels], and multiplies the columns of their readers."""
    part, label = place.site.part, "channels scaled"
    if isinstance(part, Norm):
        if part.gain is not None:
            draft.set(part.gain, gain(draft, part, place.count) / s - part.offset, label)
        if part.bias is not None:
            draft.set(part.bias, bias(draft, part, place.count) / s, label)
    elif isinstance(place.inner, FeedForward):
        scale_units(place.inner, s, draft, label)
        return
    else:
        scale_rows(part, s, draft, label)
    columns = s
    if isinstance(place.inner, Attention):
        columns = np.repeat(s.reshape(place.inner.kv_heads, -1), place.inner.group, 0).reshape(-1)
    for reader in place.readers:
        draft.edit(reader.part, label, lambda W, rows: W * columns, by_rows=True)


def scale_rows(part: Linear, s: np.ndarray, draft: Draft, label: str) -> None:
    """Divides the outputs of a map by s."""
    draft.edit(part, label, lambda W, rows: W / s[rows][:, None], by_rows=True)
    if (b := draft.offsets(part)) is not None:
        draft.set_offsets(part, b / s, label)


def scale_units(net: FeedForward, s: np.ndarray, draft: Draft, label: str) -> None:
    """Divides what enters hidden units by s, ReLU² or the linear factor of a gate, and multiplies what leaves them."""
    scale_rows(net.up, s, draft, label)
    columns = s**2 if net.gate is None and net.activation == "relu2" else s
    draft.edit(net.down, label, lambda W, rows: W * columns, by_rows=True)


def _largest_columns(parts: Sequence[Linear], draft: Draft) -> np.ndarray:
    """Largest absolute value in each column of some maps of one input; each array is read once."""
    found = []
    for name in dict.fromkeys(part.weight for part in parts):
        here = [part for part in parts if part.weight == name]
        if here == [Linear(name, here[0].bias)]:
            found += [np.abs(rows).max(0) for _, rows in draft.pieces(name)]
        else:
            array = draft[name]
            found += [np.abs(part.matrix(array)).max(0) for part in here]
    return np.max(found, 0)


@dataclass(frozen=True, eq=False)
class Smooth(AbstractStep):
    r"""SmoothQuant: scales of the channels of norms from the largest activations, folded as by `ScaleChannels`.

    $s_j = \max|x_j|^\alpha / \max_i|W_{ij}|^{1-\alpha}$, at least 10⁻⁵, over all readers W of a norm (Xiao et al.,
    2023, Eq. 4).

    Attributes:
        largest: max |x_j| [d] of the input of some readers of a norm, by the reader: its path
            ("blocks.0.attention.query"), its array, or its array's name without ".weight". Of readers of one norm the
            larger ones count. Only norms of blocks are scaled: the head, and maps that read no norm, are left out.
        alpha: α, from 0 to 1.
    """

    largest: Mapping[str, Any]
    alpha: float = 0.5
    word = "smooth"
    identity = ScaleChannels.identity

    def __post_init__(self) -> None:
        if not isinstance(self.largest, Mapping) or not self.largest:
            raise TypeError(f"largest must be a dict from maps to vectors; got {shown(self.largest)}")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be a number from 0 to 1; got {shown(self.alpha)}")

    def scales(self, stack: Stack, draft: Draft) -> ScaleChannels:
        """The step with the scales.

        Raises:
            ValueError: naming what is no map, or no vector of finite numbers that are at least zero.
        """
        spare = stack.head.untied  # what files call the head, tied or not
        known: dict[str, tuple[Linear, ...]] = dict.fromkeys((spare, spare.removesuffix(".weight")), ())
        for site in stack.linears:
            names = {site.path, site.part.weight, site.part.weight.removesuffix(".weight")}
            known |= {name: (*known.get(name, ()), site.part) for name in names}
        largest: dict[Linear, np.ndarray] = {}
        for name, given in self.largest.items():
            if name not in known:
                raise ValueError(f"no linear map is called {name!r}{did_you_mean(str(name), known)}")
            a = _vector(f"the largest activations of {name!r}", given)
            if (a < 0).any():
                raise ValueError(f"the largest activations of {name!r} must not be below zero; got {a.min()}")
            if twice := [part for part in known[name] if part in largest]:
                raise ValueError(f"{name!r} is another name of {twice[0].weight!r}: give its activations once")
            largest |= dict.fromkeys(known[name], a)
        found = {}
        for place in places(stack, draft):
            readers = [reader.part for reader in place.readers]
            seen = {reader: largest[reader] for reader in readers if reader in largest}
            inside = place.site.path.startswith("blocks.") and place.inner is None
            if not inside or not seen or place.site.part.gain is None:
                continue
            if wrong := [(reader.weight, len(a)) for reader, a in seen.items() if a.shape != (place.count,)]:
                raise ValueError(f"{wrong[0][0]!r} has {place.count} inputs; got {wrong[0][1]} numbers for them")
            a = np.max(list(seen.values()), 0)
            weights = np.maximum(_largest_columns(readers, draft), LEAST)
            found[place.site.path] = np.maximum(a**self.alpha / weights ** (1 - self.alpha), LEAST)
        if not found:
            raise ValueError("none of the maps with largest activations reads a norm of a block that has a gain")
        return ScaleChannels(found)

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Those of `ScaleChannels`."""
        return self.scales(stack, draft).obstacles(stack, draft)

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Scales each norm."""
        return self.scales(stack, draft).run(stack, draft)


def read_vectors(path: Path) -> dict[str, Any]:
    """Vectors by name from a file.

    Args:
        path: `.safetensors`, `.npz` or `.json` with vectors by name; `.pt` or `.pth` with tensors by name, as
            SmoothQuant writes them, or with the list "scale" of AWQ, whose entries are (what is divided, its readers,
            scales). The latter need torch.

    Returns:
        The vectors. Of AWQ: by what is divided.

    Raises:
        ValueError: if the file holds something else, has another format, or torch is missing.
        OSError: if it cannot be read.
    """
    path = path.expanduser()
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ValueError(f"vectors are read from {', '.join(_READERS)}; got {path}")
    try:
        found = read(path)
    except (OSError, ValueError):
        raise
    except Exception as error:  # whatever the file is, it holds no vectors
        raise ValueError(f"{path} holds no vectors by name: {type(error).__name__}: {error}") from error
    entries = found.get("scale") if isinstance(found, dict) else None
    if isinstance(entries, list | tuple):
        return _of_awq(path, entries)
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{path} must hold vectors by name; it holds {shown(found) if found else 'none'}")
    return {str(name): _vector(f"{name!r} in {path}", value) for name, value in found.items()}


def _vector(name: str, given: Any) -> np.ndarray:
    """A vector of finite numbers, in float64; AWQ stores vectors as matrices of one row.

    Raises:
        ValueError: naming what is none.
    """
    try:
        value = np.asarray(given.detach().double().cpu().numpy() if hasattr(given, "detach") else given)
        if value.dtype.kind in "OSUTMmcb":
            raise TypeError(f"it has dtype {value.dtype}")
        found = value.astype(np.float64)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:  # the last: a tensor without numbers
        raise ValueError(f"{name} must be a vector of real numbers: {error}") from error
    found = found.reshape(-1) if found.size == max(found.shape, default=0) else found
    if found.ndim != 1 or not found.size:
        raise ValueError(f"{name} must be a vector; it has shape {found.shape}")
    if (wrong := found[~np.isfinite(found)]).size:
        raise ValueError(f"{name} must hold finite numbers; it holds {wrong[0]}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose names differ.

    Raises:
        ValueError: naming one that does not.
    """
    if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
        raise ValueError(f"{twice[0]!r} is there twice")
    return dict(pairs)


def _of_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON with vectors by name: {error}") from error


def _of_npz(path: Path) -> Any:
    with path.open("rb") as file, np.load(file) as arrays:
        return dict(arrays)


def _of_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"{path} needs torch, which is not installed: save its vectors as .safetensors") from error
    return torch.load(path, map_location="cpu", weights_only=True)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": lambda path: {name: np.asarray(array) for name, array in read_header(path)[0].items()},
    ".npz": _of_npz,
    ".json": _of_json,
    ".pt": _of_torch,
    ".pth": _of_torch,
}


def _of_awq(path: Path, entries: Sequence[Any]) -> dict[str, Any]:
    """Scales of AWQ by what is divided.

    Raises:
        ValueError: naming what is wrong with an entry.
    """
    found: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, list | tuple) or len(entry) != 3 or not isinstance(entry[0], str):
            raise ValueError(f"entries of 'scale' in {path} must be (what is divided, its readers, scales)")
        if entry[0] in found:
            raise ValueError(f"{path} has two scales for {entry[0]!r}")
        found[entry[0]] = _vector(f"the scale of {entry[0]!r} in {path}", entry[2])
    if not found:
        raise ValueError(f"the list 'scale' of {path} is empty")
    return found
