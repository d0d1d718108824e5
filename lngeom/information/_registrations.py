"""What lineax dispatches on: the operator is symmetric, semidefinite, and can become a matrix."""

import jax
import jax.numpy as jnp
import lineax as lx

from lngeom.information._operator import FisherOperator

for _property in (lx.is_symmetric, lx.is_positive_semidefinite):
    _property.register(FisherOperator)(lambda operator: True)
for _property in (lx.is_negative_semidefinite, lx.has_unit_diagonal):
    _property.register(FisherOperator)(lambda operator: False)
for _property in (lx.is_diagonal, lx.is_tridiagonal, lx.is_lower_triangular, lx.is_upper_triangular):
    _property.register(FisherOperator)(lambda operator: operator.in_size() == 1)


@lx.diagonal.register(FisherOperator)
def _(operator: FisherOperator):
    return operator.diagonal()


@lx.tridiagonal.register(FisherOperator)
def _(operator: FisherOperator):
    matrix = operator.as_matrix()
    return jnp.diagonal(matrix), jnp.diagonal(matrix, -1), jnp.diagonal(matrix, 1)


@lx.linearise.register(FisherOperator)
@lx.conj.register(FisherOperator)
def _(operator: FisherOperator):
    return operator


@lx.materialise.register(FisherOperator)
def _(operator: FisherOperator):
    unravel = operator.problem.unravel
    rows = jax.vmap(unravel, 1, -1)(operator.as_matrix())
    matrix = jax.tree.map(lambda leaf: jax.vmap(unravel, 0, 0)(leaf.reshape(-1, leaf.shape[-1])), rows)
    matrix = jax.tree.map(
        lambda shape, block: jax.tree.map(lambda b: b.reshape(*shape.shape, *b.shape[1:]), block),
        operator.in_structure(),
        matrix,
    )
    return lx.PyTreeLinearOperator(matrix, operator.out_structure(), (lx.symmetric_tag, lx.positive_semidefinite_tag))
