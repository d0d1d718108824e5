"""`fisher`: the one door to Fisher matrices, of a normalized GLM or of any function."""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count
from lngeom._core.trees import Frozen, leaf_paths
from lngeom._core.types import check_parameters, is_concrete, is_tracing
from lngeom.families import AbstractDistribution, Categorical, Joined, Product
from lngeom.information._captured import Captured, capture
from lngeom.information._coupled import BatchCoupled, check_coupling, stream
from lngeom.information._derivative import BlockedPullback, GLMFunction, Pullback, pullback_of, sampled_scores
from lngeom.information._given import explained, read_inputs, read_mask, read_responses
from lngeom.information._operator import FisherOperator
from lngeom.information._parameters import join, select_leaves
from lngeom.information._planner import plan as make_plan
from lngeom.information._problem import Problem, ignore_masked, replace_masked_samples
from lngeom.information._products import Stored, store
from lngeom.information._sharding import (
    Placement,
    automatic_mesh,
    find_division,
    find_placement,
    pad,
    place,
    put_on_automatic_mesh,
    sum_over_samples,
)
from lngeom.information._vocabulary import VocabularyHead
from lngeom.information.glm import NormalizedGLM
from lngeom.information.reference import require_printed_form

METHODS = ("exact", "printed", "monte_carlo", "empirical")


def fisher(
    model_or_apply: NormalizedGLM | Callable[[PyTree, PyTree], Array],
    params: PyTree,
    X: PyTree,
    *,
    family: AbstractDistribution | PyTree | None = None,
    wrt: str | Sequence[str] | Callable[[str, Array], bool] | None = None,
    batch_coupled: bool | None = None,
    mask: Array | None = None,
    method: str = "exact",
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    y: PyTree = None,
    mesh: jax.sharding.Mesh | None = None,
    memory: int | None = None,
    chunk: int | None = None,
    check: bool = True,
) -> FisherOperator:
    r"""The Fisher information matrix of a model at its parameters, as a linear operator.

    $$F = \frac1N \sum_n \sum_t m_{nt}\, J_{nt}^\top \Lambda_{nt} J_{nt}, \qquad J = \partial
    z/\partial\theta, \quad \Lambda = \mathrm{Cov}[y \mid z]/\phi^2.$$

    A mean over the N samples (all rows of X), of a sum over the positions t which the mask does not leave
    out. Products inside the model are as precise as JAX makes them: on recent GPUs float32 is multiplied in TF32, with
    errors near 3e-4, except under `jax.default_matmul_precision("highest")`.

    Args:
        model_or_apply: a `NormalizedGLM`, or any JAX function apply(params, X) → natural parameters [N], [N C] or [N *T
            C], or a pytree of such outputs, which depend for a sample on that sample alone unless `batch_coupled`. What
            it closes over is read at each call. What is compiled is kept by function: define one function, and pass it
            again. What changes from call to call belongs in params or X, or else each change compiles anew.
        params: any pytree. Parameters are its real floating point arrays and NumPy's scalars. Python's own numbers are
            settings, and buffers are no parameters: collections of linen beside "params", variables of nnx that are no
            `nnx.Param`, and `equinox.nn.State`. A variable of nnx at several places is one parameter.
        X: inputs, an array or a pytree of arrays, one sample a row.
        family: distribution of a response given its natural parameters (a GLM has its own); of several outputs a pytree
            like them, such as {"policy": lg.families.Categorical(), "value": lg.families.Gaussian()}.
        wrt: which leaves to differentiate: paths of leaves or subtrees ("layer1", "layer1.kernel"), or a predicate of
            (path, leaf). By default every parameter; `F.excluded` names the numbers left out.
        batch_coupled: whether samples interact: training-mode batch norm, or dropout whose noise depends on the shape
            of X. A probe raises an error where they do and it was not said. Such a function is evaluated on all samples
            at once; one whose statistics are taken with `lngeom.information.BatchCoupled`, and a batch-normalized GLM,
            can be divided into chunks.
        mask: [N *T] (or [N]), nonzero for positions that count; may hold weights m ≥ 0, by which drawn or observed
            scores are multiplied as √m, so that the mean over draws is F. Entries of X at the other positions (in
            leaves [N *T …], like the mask) that are not finite count as 0. The model must be finite there, with finite
            derivatives. Several outputs have one mask, of the axes that all of them begin with.
        method: "exact"; "printed" (Eqs. 13–14, normalized GLM); "monte_carlo" (responses drawn from the model);
            "empirical" (observed responses, which is another matrix).
        key: for "monte_carlo".
        samples: draws for each input, for "monte_carlo".
        y: observed responses, for "empirical"; a pytree of them for several outputs.
        mesh: divide the samples over all axes of this mesh, for any N; samples that are sharded already stay where they
            are.
        memory: budget in bytes; by default half of what is free.
        chunk: samples at a time; planned by default (see `F.plan`).
        check: look for NaN, infinities and interacting samples, and compare matrices and factors with the product of
            one random vector when they are computed (all skipped under jit, and where the function closes over a
            traced value).

    Raises:
        ValueError: if the arguments do not fit together, values are not finite, a GLM's variance is zero, or samples
            interact and it was not said. Later, if the function must be traced again and what it closes over has
            changed since.

    Warns:
        UserWarning: if one array is several parameters.

    Example:
        >>> import jax, lngeom as lg
        >>> model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
        >>> params = model.init(jax.random.key(0), inputs=3, outputs=5)
        >>> F = lg.fisher(model, params, jax.random.normal(jax.random.key(1), (100, 3)))
        >>> F.as_matrix().shape, F.rank()  # 25 parameters, of which 3 shifts and 1 scale are not identifiable
        ((25, 25), 21)
    """
    function, family, coupled = _read_model(model_or_apply, family, method, params, X, batch_coupled, mask)
    _check_score_arguments(method, key, samples, y)
    samples = samples if samples is None else check_count("samples", samples, 1, what="a whole number of draws")
    chunk = chunk if chunk is None else check_count("chunk", chunk, 1, what="a whole number of samples")
    selected, rest, excluded = select_leaves(params, wrt)
    given = _given_problem(function, family, selected, rest, X, mask, coupled)
    if check and given.is_concrete and not isinstance(function, GLMFunction):
        check_coupling(given)
    divisible = replace_masked_samples(stream(given, chunk, memory))
    placement, placed = _place(divisible, mesh, X)
    problem = replace(placed, scores=_scores_at(placed, placement, method, key, samples, y))
    plan = make_plan(problem, 1 if problem.coupled else placement.shards, memory, chunk)
    chunks = placement._replace(chunk=plan.chunk)
    if check and problem.is_concrete:
        stored, bad = _store_and_count(problem, chunks, plan.store)
        glm = isinstance(model_or_apply, NormalizedGLM) and mask is None
        diagnose = functools.partial(model_or_apply.natural_parameters, params, X) if glm else None
        if is_concrete(bad):  # which the counts of a function that closes over a traced value are not
            _require_finite(problem, jax.device_get(bad), diagnose)
    else:
        stored = store(problem, chunks)[0] if plan.store else None
    return FisherOperator(problem, stored, placement, plan, method, excluded, check)


def _given_problem(
    function: Callable,
    family: AbstractDistribution,
    selected: PyTree,
    rest: PyTree,
    X: PyTree,
    mask: Array | None,
    coupled: bool | None,
) -> Problem:
    """The problem as the user states it."""
    X, samples = read_inputs(X)
    sharded = find_placement(X)[0] is not None and is_concrete(X)
    inputs = put_on_automatic_mesh(X) if sharded else jax.tree.map(jnp.asarray, X)
    divided = find_division(selected)[0] if is_concrete(selected) else None
    if divided is not None:
        mesh = find_placement(X)[0]
        if mesh is not None and automatic_mesh(mesh) != automatic_mesh(divided):
            raise ValueError(f"samples and parameters must be on one mesh; got {mesh.shape} and {divided.shape}")
        selected = put_on_automatic_mesh(selected)
    captured = _captured(function, join(selected, rest), inputs)
    static = Frozen((function, family, captured)), selected, Frozen(rest)
    problem = Problem(*static, inputs, None, None, samples=samples, coupled=bool(coupled))
    outputs = problem.output_shape
    if not isinstance(function, GLMFunction):
        family.check_count(outputs.shape[-1])
    return problem if mask is None else ignore_masked(replace(problem, weights=read_mask(mask, outputs)))


def _captured(function: Callable, params: PyTree, inputs: PyTree) -> Captured | None:
    """What a function reads besides its arguments; our own models read nothing else."""
    if isinstance(function, GLMFunction) and type(function.model.normalizer).__module__.startswith("lngeom."):
        return None
    try:
        return capture(function, params, inputs)
    except Exception as error:
        raise explained(error, function, params, inputs) from error


def _place(problem: Problem, mesh: jax.sharding.Mesh | None, X: PyTree) -> tuple[Placement, Problem]:
    """The samples on the mesh given, or on the one where they are."""
    found, axes = find_placement(X) if mesh is None else (mesh, mesh.axis_names)
    if not problem.is_concrete:
        return Placement(found, tuple(axes), problem.rows), problem
    divided, params = find_division(problem.params)
    placement = Placement(automatic_mesh(found or divided), tuple(axes), problem.rows, params)
    return placement, problem if placement.mesh is None else place(problem, placement)


def _read_model(
    model_or_apply: Any,
    family: AbstractDistribution | PyTree | None,
    method: str,
    params: PyTree,
    X: PyTree,
    coupled: bool | None,
    mask: Array | None,
) -> tuple[Callable, AbstractDistribution, bool | None]:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if isinstance(model_or_apply, NormalizedGLM):
        model = model_or_apply
        if family is not None and family != model.family:
            raise ValueError(f"a NormalizedGLM has its own family, {model.family}; got family={family}")
        check_parameters(params, X)
        really = model.normalizer.couples_samples
        if coupled is not None and coupled != really:
            raise ValueError(
                f"{type(model.normalizer).__name__} has couples_samples = {really}; got batch_coupled={coupled}"
            )
        if method == "printed":
            require_printed_form(model)
        return GLMFunction(model, printed=method == "printed"), model.family, really
    if method == "printed":
        raise ValueError("method='printed' is Eqs. 13 and 14, which are about a NormalizedGLM")
    if not callable(model_or_apply):
        raise ValueError(
            f"expected a NormalizedGLM or a function apply(params, X); got {type(model_or_apply).__name__}"
        )
    if isinstance(model_or_apply, BatchCoupled):
        if coupled is False:
            raise ValueError("a BatchCoupled function couples samples; got batch_coupled=False")
        coupled = True
    if isinstance(model_or_apply, VocabularyHead) and not isinstance(family, Categorical):
        raise ValueError(f"a VocabularyHead gives logits: family must be lg.families.Categorical(); got {family!r}")
    if isinstance(family, AbstractDistribution):
        return model_or_apply, family, coupled
    try:
        outputs = eqx.filter_eval_shape(lambda p, x: model_or_apply(p, x), params, X)
    except Exception as error:
        raise explained(error, model_or_apply, params, X) from error
    product = Product(family, outputs, 0 if mask is None else jnp.ndim(mask) - 1)
    if isinstance(model_or_apply, BatchCoupled):
        return BatchCoupled(Joined(model_or_apply.apply, product)), product, coupled
    return Joined(model_or_apply, product), product, coupled


def _check_score_arguments(method: str, key: PRNGKeyArray | None, samples: int | None, y: PyTree) -> None:
    if method == "monte_carlo" and (key is None or samples is None):
        raise ValueError(f"method='monte_carlo' needs key= and samples=; got key={key}, samples={samples}")
    if method == "empirical" and y is None:
        raise ValueError("method='empirical' needs y=, the observed responses")
    given = {"key": key, "samples": samples} if method != "monte_carlo" else {}
    given |= {"y": y} if method != "empirical" else {}
    unused = sorted(name for name, value in given.items() if value is not None)
    if unused:
        raise ValueError(f"method={method!r} does not use {', '.join(unused)}")


def _scores_at(
    problem: Problem, placement: Placement, method: str, key: PRNGKeyArray | None, samples: int | None, y: PyTree
) -> Float[Array, "N m *T C"] | None:
    """Scores at drawn or observed responses; None for an exact matrix."""
    if method not in {"monte_carlo", "empirical"}:
        return None
    responses = read_responses(y, problem.family)
    if y is not None and placement.mesh is not None and problem.is_concrete:  # beside their samples, padded like them
        rows, where = problem.rows, jax.tree.leaves(problem.inputs)[0].sharding
        filled = lambda leaf: leaf if len(leaf) == rows else pad(leaf, rows - len(leaf), "edge")  # noqa: E731
        responses = jax.tree.map(lambda leaf: jax.device_put(filled(leaf), where), responses)
    scores = _scores(problem, key, samples, responses)
    if y is not None and is_concrete(y, problem.weights) and not is_tracing():
        outputs = problem.output_shape
        counts = None if problem.weights is None else problem.weights[: problem.samples] > 0
        problem.family.check_responses(read_responses(y, problem.family), (problem.samples, *outputs.shape[1:]), counts)
    return scores


@functools.partial(jax.jit, static_argnames="samples")
def _scores(problem: Problem, key: PRNGKeyArray | None, samples: int | None, y: PyTree) -> Float[Array, "N m *T C"]:
    z = problem.forward(problem.params)
    if y is None:
        assert key is not None
        assert samples is not None
        return sampled_scores(problem.family, z, key, samples)
    scores = problem.family.score(z, y)
    if problem.weights is not None:
        scores = jnp.where(problem.weights[..., None] > 0, scores, 0)
    return scores[:, None]


@functools.partial(jax.jit, static_argnames=("at", "keep"))
def _store_and_count(problem: Problem, at: Placement, keep: bool) -> tuple[Stored | None, dict]:
    """The derivative of all samples if it is kept, and numbers of bad entries, in one program."""
    if keep:
        stored, (bad, pulled) = store(problem, at, _bad_entries)
    else:
        stored = None
        bad, pulled = sum_over_samples(lambda part: _bad_entries(part, pullback_of(part)), problem, at)
    by_leaf = {"parameters": problem.params, "Jacobians": pulled}
    return stored, bad | {what: [_nonfinite(leaf) for leaf in jax.tree.leaves(tree)] for what, tree in by_leaf.items()}


def _bad_entries(part: Problem, pullback: Pullback | BlockedPullback) -> tuple[dict[str, Array], PyTree]:
    """Numbers of bad entries in z and Λ, and Jᵀ1/N, which is not finite where J is not; a sum may leave 16 bits."""
    z = pullback.derivative.outputs
    one = jax.tree.map(lambda leaf: jnp.ones_like(leaf).at[..., 0].set(2), z)
    metric = pullback.metric.product(one) if part.scores is None else part.scores
    bad = {
        "outputs": _nonfinite(z),
        "cancelled": _count_cancelled(part),
        "mistaken": sum(_mistaken(part, leaf) for leaf in jax.tree.leaves(z)[:1]),
        "outside": sum(jnp.sum(part.family.outside(leaf)) for leaf in jax.tree.leaves(z)),
        "metric": _nonfinite(metric),
    }
    if part.weights is not None:  # at the positions that count: the others are constants
        tangents = pullback.derivative.push(jax.tree.map(jnp.ones_like, part.params))
        bad["tangents"] = _nonfinite(tangents)
    return bad, pullback.derivative.pull(jax.tree.map(lambda leaf: jnp.full_like(leaf, 1 / part.samples), z))


def _mistaken(part: Problem, z: Array) -> Array:
    """Number of positions that count where outputs look like something else than the family expects."""
    found = part.family.mistaken(z)
    return jnp.sum(found if part.weights is None else found & (part.weights > 0))


def _require_finite(problem: Problem, bad: dict[str, Any], diagnose: Callable[[], object] | None) -> None:
    """Raises a ValueError for NaN and infinities in z, Λ and J, and for variances of zero.

    `diagnose` is called where z is not what it should be, to raise an error that says more.
    """
    names = leaf_paths(problem.params)
    for name, count in zip(names, bad["parameters"], strict=True):
        _require_none(f"parameter {name}", count)
    if diagnose is not None and bad["outputs"] + bad["cancelled"]:
        diagnose()
    if bad["cancelled"]:
        raise ValueError(
            f"{type(problem.model.model.normalizer).__name__} is undefined: zero variance for "
            f"{bad['cancelled']} normalized inputs at positions that count; mask such samples too, or use "
            "eps > 0 (check=False skips this check)"
        )
    _require_none("natural parameters z", bad["outputs"])
    positions = problem.samples * math.prod(problem.output_shape.shape[1:-1])
    counted = positions if problem.weights is None else int(jnp.sum(problem.weights > 0))
    if bad["mistaken"] and bad["mistaken"] == counted > 1:
        warnings.warn(
            f"all {counted} rows of outputs are probabilities, between 0 and 1 with a sum of 1, and "
            f"{problem.family.name} takes logits: the softmax is applied twice. Leave it out of the model, or return "
            "the logarithms",
            stacklevel=3,
        )
    if bad["outside"]:
        raise ValueError(
            f"{problem.family.name} needs natural parameters z < {problem.family.upper:g}; {bad['outside']} are not"
        )
    _require_none("the metric Λ of the outputs, or their scores,", bad["metric"])
    for name, count in zip(names, bad["Jacobians"], strict=True):
        if not count or problem.weights is None or bad["tangents"]:
            _require_none(f"the Jacobian ∂z/∂{name}", count)
            continue
        raise ValueError(
            f"the Jacobian ∂z/∂{name} must be finite at masked positions too, where it is multiplied by 0: make the "
            "model finite there, with jnp.where on the argument of the operation that is undefined (check=False skips "
            "this check)"
        )


def _count_cancelled(problem: Problem) -> Array:
    """Number of normalized inputs of a GLM, at positions that count, whose variance is zero but for rounding."""
    if not isinstance(problem.model, GLMFunction):
        return jnp.zeros((), int)
    params = eqx.combine(problem.params, problem.fixed.thaw())
    cancelled = problem.model.model.cancelled(params, problem.inputs)
    return jnp.sum(cancelled if problem.weights is None else cancelled & (problem.weights > 0)[..., None])


def _nonfinite(tree: PyTree) -> Array:
    return sum((jnp.sum(~jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)), jnp.zeros((), int))


def _require_none(name: str, bad: int) -> None:
    if bad:
        raise ValueError(f"{name} must be finite; {bad} entries are NaN or infinite (check=False skips this check)")
