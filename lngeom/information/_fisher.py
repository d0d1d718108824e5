"""`fisher`: the one door to Fisher matrices, of a normalized GLM or of any function.

Its steps stand below it in the order in which it takes them.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count
from lngeom._core.trees import Frozen
from lngeom._core.types import check_parameters, is_concrete, is_tracing
from lngeom.families import AbstractDistribution, Categorical, Joined, Product
from lngeom.information._captured import Captured, capture
from lngeom.information._coupled import BatchCoupled, check_coupling, stream
from lngeom.information._derivative import GLMFunction, derivative_bytes, sampled_scores
from lngeom.information._finite import require_finite, store_and_count
from lngeom.information._float64 import in_float64
from lngeom.information._given import explained, read_inputs, read_mask, read_responses
from lngeom.information._loaded import LoadedParts
from lngeom.information._operator import FisherOperator
from lngeom.information._parameters import Selected, join, select_leaves
from lngeom.information._planner import Plan, Sizes, plan
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
)
from lngeom.information._summed import SummedFisher
from lngeom.information._vocabulary import VocabularyHead
from lngeom.information.batches import Batch, Batches, as_batches
from lngeom.information.glm import NormalizedGLM
from lngeom.information.reference import require_printed_form

DEFINITIONS = ("exact", "printed", "monte_carlo", "empirical")
"""Which matrix it is: the `method` of `fisher`."""


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
    dtype: Any = None,
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
        X: inputs, an array or a pytree of arrays, one sample a row; or a loader that gives such batches again and again
            (a torch `DataLoader`, a dataset of tf.data, a function that returns an iterator), or `lg.Batches`, which
            says what a batch holds. Of a loader one batch is in memory at a time, and the next. Matrix, diagonal,
            trace, blocks, rank and a product take one pass each (the rank of a GLM two); what iterates takes one a
            product.
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
        dtype: "float64" to compute in float64 wherever the function computes with fewer bits: parameters, inputs and
            casts inside it. A warning names operations that cannot be widened. By default everything is as it is.

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
    if dtype is not None:
        model_or_apply, params, X = in_float64(dtype, model_or_apply, params, X)
    batches = as_batches(X)
    if batches is not None:
        given = {"batch_coupled": batch_coupled, "mask": mask, "mesh": mesh, "y": y, "key": key, "samples": samples}
        _require_none_of(batches, method, given)
        return _of_batches(model_or_apply, params, batches, family, wrt, method, memory, chunk, check)
    model = _read_model(model_or_apply, family, method, params, X, batch_coupled, mask)
    responses = _read_responses(method, key, samples, y)
    samples_at_a_time = chunk if chunk is None else check_count("chunk", chunk, 1, what="a whole number of samples")
    parameters = select_leaves(params, wrt)
    stated = _state_problem(model, parameters, X, mask)
    if check:
        _require_separate_samples(stated)
    divisible = replace_masked_samples(stream(stated, samples_at_a_time, memory))
    placement = _find_placement(divisible, mesh, X)
    placed = _put_samples(divisible, placement)
    problem = replace(placed, scores=_scores_at(placed, placement, responses))
    planned = _plan(problem, placement, memory, samples_at_a_time)
    stored = _store_checked(problem, placement, planned, stated) if check else _store(problem, placement, planned)
    return FisherOperator(problem, stored, placement, planned, method, parameters.excluded, check)


def _require_none_of(batches: Batches, method: str, given: dict[str, Any]) -> None:
    """Refuses what a loader's data cannot be combined with."""
    if method not in {"exact", "empirical"}:
        raise ValueError(f"of a loader there are method='exact' and 'empirical'; got {method!r}: give arrays instead")
    if method == "empirical" and not batches.has_responses:
        raise ValueError(
            "method='empirical' needs observed responses: say which part of a batch they are, as by "
            "lg.Batches(loader, inputs=0, y=1)"
        )
    if given.pop("batch_coupled"):
        raise ValueError(
            "samples that interact must be in memory together: give arrays, or the average of one matrix a batch, "
            "lg.information.average([lg.fisher(apply, params, X, batch_coupled=True, ...) for X in loader])"
        )
    if said := [f"{name}=" for name, value in given.items() if value is not None]:
        raise ValueError(
            f"{', '.join(said)} cannot be given beside a loader; what belongs to samples comes with the batches, as in "
            "lg.Batches(loader, inputs=0, mask=1, y=2)"
        )


def _of_batches(
    model_or_apply: NormalizedGLM | Callable[[PyTree, PyTree], Array],
    params: PyTree,
    batches: Batches,
    family: AbstractDistribution | PyTree | None,
    wrt: str | Sequence[str] | Callable[[str, Array], bool] | None,
    method: str,
    memory: int | None,
    chunk: int | None,
    check: bool,
) -> SummedFisher:
    """The operator of a loader's data. Its first batch is read now, all of them when they are needed."""
    samples_at_a_time = chunk if chunk is None else check_count("chunk", chunk, 1, what="a whole number of samples")
    parameters, alone = select_leaves(params, wrt), Placement(None, (), 1)
    first = next(batches.read())
    try:
        model = _read_model(model_or_apply, family, method, params, first.inputs, None, first.mask)
        stated = replace(_state_problem(model, parameters, first.inputs, first.mask), samples=1)
    except Exception as error:
        raise batches.explained(error, first) from error
    if model.coupled:
        raise ValueError(
            "a model whose samples interact, such as one with batch norm in training mode, needs them in memory "
            "together: give arrays"
        )
    if check:
        _require_separate_samples(stated)
    planned = _plan(stated, alone, memory, samples_at_a_time)._replace(store=False)

    def make(batch: Batch, look: bool) -> FisherOperator:
        again = replace_masked_samples(_on_other_samples(stated, batch))
        responses = None if method == "exact" else Responses(None, None, batch.y)
        scores = _scores_at(replace(again, samples=again.rows), alone, responses)
        problem = replace(again, scores=scores)
        if look and check:
            _store_checked(problem, alone, planned, again)
        return FisherOperator(problem, None, alone, planned, method, parameters.excluded, check)

    parts = LoadedParts(batches, make)
    return SummedFisher(stated, None, alone, planned, method, parameters.excluded, check, parts=parts)


def _on_other_samples(stated: Problem, batch: Batch) -> Problem:
    """The problem on the samples of another batch.

    Raises:
        ValueError: if they are not like those of the first batch.
    """
    inputs = _as_arrays(read_inputs(batch.inputs)[0])
    kinds = [
        (jax.tree.structure(tree), [(a.shape[1:], a.dtype) for a in jax.tree.leaves(tree)])
        for tree in (stated.inputs, inputs)
    ]
    if kinds[0] != kinds[1]:
        expected, found = (", ".join(f"{dtype} {list(shape)}" for shape, dtype in kind[1]) for kind in kinds)
        raise ValueError(f"its samples are not like those of the first batch: expected {expected}; got {found}")
    problem = stated.with_samples((inputs, None, None))
    if batch.mask is None:
        return problem
    return ignore_masked(replace(problem, weights=read_mask(batch.mask, problem.output_shape)))


class Model(NamedTuple):
    """What is differentiated.

    Attributes:
        function: apply(params, X) → natural parameters, in one array.
        family: of these.
        coupled: whether samples interact; None where it was not said.
    """

    function: Callable
    family: AbstractDistribution
    coupled: bool | None


def _read_model(
    model_or_apply: Any,
    family: AbstractDistribution | PyTree | None,
    method: str,
    params: PyTree,
    X: PyTree,
    coupled: bool | None,
    mask: Array | None,
) -> Model:
    """The function and its family; several outputs joined in one array."""
    if method not in DEFINITIONS:
        raise ValueError(f"method must be one of {', '.join(DEFINITIONS)}; got {method!r}")
    if isinstance(model_or_apply, NormalizedGLM):
        return _read_glm(model_or_apply, family, method, params, X, coupled)
    if method == "printed":
        raise ValueError("method='printed' is Eqs. 13 and 14, which are about a NormalizedGLM")
    if not callable(model_or_apply):
        raise ValueError(
            f"expected a NormalizedGLM or a function apply(params, X); got {type(model_or_apply).__name__}"
        )
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(model_or_apply, torch.nn.Module):
        raise ValueError("a torch module runs in JAX after apply, params = lg.from_torch(module, X)")
    if isinstance(model_or_apply, BatchCoupled) and coupled is False:
        raise ValueError("a BatchCoupled function couples samples; got batch_coupled=False")
    if isinstance(model_or_apply, VocabularyHead) and not isinstance(family, Categorical):
        raise ValueError(f"a VocabularyHead gives logits: family must be lg.families.Categorical(); got {family!r}")
    interacting = True if isinstance(model_or_apply, BatchCoupled) else coupled
    if isinstance(family, AbstractDistribution):
        return Model(model_or_apply, family, interacting)
    return _join_outputs(model_or_apply, family, params, X, interacting, mask)


def _read_glm(
    model: NormalizedGLM,
    family: AbstractDistribution | PyTree | None,
    method: str,
    params: PyTree,
    X: PyTree,
    coupled: bool | None,
) -> Model:
    """A normalized GLM, which has its own family and knows whether it couples samples."""
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
    return Model(GLMFunction(model, printed=method == "printed"), model.family, really)


def _join_outputs(
    apply: Callable, families: PyTree, params: PyTree, X: PyTree, coupled: bool | None, mask: Array | None
) -> Model:
    """Several outputs, with a family each, as one array of natural parameters."""
    try:
        outputs = eqx.filter_eval_shape(lambda p, x: apply(p, x), params, X)
    except Exception as error:
        raise explained(error, apply, params, X) from error
    product = Product(families, outputs, 0 if mask is None else jnp.ndim(mask) - 1)
    if isinstance(apply, BatchCoupled):
        return Model(BatchCoupled(Joined(apply.apply, product)), product, coupled)
    return Model(Joined(apply, product), product, coupled)


class Responses(NamedTuple):
    """At which responses scores are taken in the place of the metric; at none for an exact matrix.

    Attributes:
        key: of responses that are drawn.
        draws: how many are drawn for each sample.
        observed: responses that are given.
    """

    key: PRNGKeyArray | None
    draws: int | None
    observed: PyTree


def _read_responses(method: str, key: PRNGKeyArray | None, samples: int | None, y: PyTree) -> Responses | None:
    """What the method needs, and nothing that it does not use."""
    if method == "monte_carlo" and (key is None or samples is None):
        raise ValueError(f"method='monte_carlo' needs key= and samples=; got key={key}, samples={samples}")
    if method == "empirical" and y is None:
        raise ValueError("method='empirical' needs y=, the observed responses")
    used = {"monte_carlo": {"key", "samples"}, "empirical": {"y"}}.get(method, set())
    given = {name for name, value in {"key": key, "samples": samples, "y": y}.items() if value is not None}
    if given - used:
        raise ValueError(f"method={method!r} does not use {', '.join(sorted(given - used))}")
    draws = samples if samples is None else check_count("samples", samples, 1, what="a whole number of draws")
    return Responses(key, draws, y) if used else None


def _state_problem(model: Model, parameters: Selected, X: PyTree, mask: Array | None) -> Problem:
    """The problem as the user states it."""
    inputs, samples = read_inputs(X)
    placed = _as_arrays(inputs)
    differentiated = _on_one_mesh(parameters.params, X)
    captured = _captured(model.function, join(differentiated, parameters.rest), placed)
    function = Frozen((model.function, model.family, captured))
    problem = Problem(
        function,
        differentiated,
        Frozen(parameters.rest),
        placed,
        weights=None,
        scores=None,
        samples=samples,
        coupled=bool(model.coupled),
    )
    outputs = problem.output_shape
    if not isinstance(model.function, GLMFunction):
        model.family.check_count(outputs.shape[-1])
    return problem if mask is None else ignore_masked(replace(problem, weights=read_mask(mask, outputs)))


def _as_arrays(X: PyTree) -> PyTree:
    """The inputs as arrays of JAX; those that are divided over devices stay where they are."""
    divided = find_placement(X)[0] is not None and is_concrete(X)
    return put_on_automatic_mesh(X) if divided else jax.tree.map(jnp.asarray, X)


def _on_one_mesh(params: PyTree, X: PyTree) -> PyTree:
    """The parameters, on axes of the Auto type where they are divided over devices.

    Raises:
        ValueError: if samples are divided over another mesh.
    """
    divided = find_division(params)[0] if is_concrete(params) else None
    if divided is None:
        return params
    mesh = find_placement(X)[0]
    if mesh is not None and automatic_mesh(mesh) != automatic_mesh(divided):
        raise ValueError(f"samples and parameters must be on one mesh; got {mesh.shape} and {divided.shape}")
    return put_on_automatic_mesh(params)


def _captured(function: Callable, params: PyTree, inputs: PyTree) -> Captured | None:
    """What a function reads besides its arguments; our own models read nothing else."""
    if isinstance(function, GLMFunction) and type(function.model.normalizer).__module__.startswith("lngeom."):
        return None
    try:
        return capture(function, params, inputs)
    except Exception as error:
        raise explained(error, function, params, inputs) from error


def _require_separate_samples(problem: Problem) -> None:
    """Looks whether samples interact although it was not said; of our own models it is known."""
    if problem.is_concrete and not isinstance(problem.model, GLMFunction):
        check_coupling(problem)


def _find_placement(problem: Problem, mesh: jax.sharding.Mesh | None, X: PyTree) -> Placement:
    """The mesh given, or the one where the samples are."""
    found, axes = find_placement(X) if mesh is None else (mesh, mesh.axis_names)
    if not problem.is_concrete:
        return Placement(found, tuple(axes), problem.rows)
    divided, params = find_division(problem.params)
    return Placement(automatic_mesh(found or divided), tuple(axes), problem.rows, params)


def _put_samples(problem: Problem, placement: Placement) -> Problem:
    """The samples on the mesh; under jit they stay where they are."""
    return place(problem, placement) if placement.mesh is not None and problem.is_concrete else problem


def _scores_at(problem: Problem, placement: Placement, responses: Responses | None) -> Float[Array, "N m *T C"] | None:
    """Scores at drawn or observed responses; None for an exact matrix."""
    if responses is None:
        return None
    if responses.observed is None:
        return _drawn_scores(problem, responses.key, responses.draws)
    observed = read_responses(responses.observed, problem.family)
    scores = _observed_scores(problem, _beside_samples(observed, problem, placement))
    if is_concrete(responses.observed, problem.weights) and not is_tracing():
        counts = None if problem.weights is None else problem.weights[: problem.samples] > 0
        problem.family.check_responses(observed, (problem.samples, *problem.output_shape.shape[1:]), counts)
    return scores


def _beside_samples(responses: PyTree, problem: Problem, placement: Placement) -> PyTree:
    """Responses on the devices of their samples, padded like them."""
    if placement.mesh is None or not problem.is_concrete:
        return responses
    rows, where = problem.rows, jax.tree.leaves(problem.inputs)[0].sharding
    filled = lambda leaf: leaf if len(leaf) == rows else pad(leaf, rows - len(leaf), "edge")  # noqa: E731
    return jax.tree.map(lambda leaf: jax.device_put(filled(leaf), where), responses)


@jax.jit(static_argnames="draws")
def _drawn_scores(problem: Problem, key: PRNGKeyArray, draws: int) -> Float[Array, "N m *T C"]:
    return sampled_scores(problem.family, problem.forward(problem.params), key, draws)


@jax.jit
def _observed_scores(problem: Problem, y: PyTree) -> Float[Array, "N 1 *T C"]:
    scores = problem.family.score(problem.forward(problem.params), y)
    if problem.weights is not None:
        scores = jnp.where(problem.weights[..., None] > 0, scores, 0)
    return scores[:, None]


def _plan(problem: Problem, placement: Placement, memory: int | None, chunk: int | None) -> Plan:
    """What computations will need of each device, and how they are divided."""
    shards = 1 if problem.coupled else placement.shards
    sizes = Sizes(
        parameters=problem.size,
        samples=-(-problem.rows // shards),
        rows_per_sample=problem.rows_per_sample,
        width=problem.dtype.itemsize,
        coupled=problem.coupled,
        derivative=lambda samples: derivative_bytes(problem, samples),
    )
    return plan(sizes, memory, chunk)


def _store(problem: Problem, placement: Placement, planned: Plan) -> Stored | None:
    """The derivative of all samples, if it is to be kept."""
    return store(problem, placement._replace(chunk=planned.chunk))[0] if planned.store else None


def _store_checked(problem: Problem, placement: Placement, planned: Plan, stated: Problem) -> Stored | None:
    """The same, once it is known that outputs, metric and derivatives are finite.

    Under jit, and where the function closes over a traced value, nothing is known, and nothing checked.
    """
    if not problem.is_concrete:
        return _store(problem, placement, planned)
    stored, bad = store_and_count(problem, placement._replace(chunk=planned.chunk), planned.store)
    if is_concrete(bad):
        require_finite(problem, jax.device_get(bad), stated)
    return stored
