"""Names of null directions: true where they are given, none where a change only looks like a symmetry."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.subspaces import Account, by_unit
from lngeom.information.spaces import find_spaces

GAUSSIAN = lg.families.Gaussian()


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def described(apply, params, X, family=GAUSSIAN):
    return lg.fisher(apply, params, X, family=family, check=False).nullspace().describe()


def dimensions(description):
    return {d.name: d.dimension for d in description.directions}


def turned(p, x):
    """A stream behind an RMS norm whose gain has another use than a linear reader: its squared length is an output."""
    h = x @ p["write"]
    y = h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 0.1) * p["gain"][None]
    return jnp.concatenate([y @ p["read"], jnp.sum(y**2, -1, keepdims=True)], -1)


@pytest.mark.parametrize(("gain", "rotations"), [((1.5, 1.5, 1.5), 3), ((1.5, 1.5, 0.7), 1), ((1.5, 1.1, 0.7), 0)])
def test_rotations_are_named_as_far_as_gains_are_equal(gain, rotations):
    params = {"write": normal(0, 4, 3), "gain": jnp.asarray(gain), "read": normal(1, 3, 5)}
    found = described(turned, params, normal(2, 60, 4))
    named = [d for d in found.directions if d.name.startswith("rotations of the 3 coordinates")]
    assert sum(d.dimension for d in named) == rotations == sum(d.dimension for d in found.directions)
    assert found.unexplained == 0
    assert all(d.leaves == ("read", "write") and d.data == 0 for d in named)


def test_unequal_gains_that_only_linear_maps_read_leave_all_rotations():
    """Two norms of one stream, each with its own gain: readers turn in the scale of theirs."""

    def apply(p, x):
        h = x @ p["write"]
        n = h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 0.1)
        h = h + jnp.tanh((n * p["gain"][None]) @ p["read"]) @ p["back"]
        n = h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 0.1)
        return (n * p["last"][None]) @ p["head"]

    params = {"write": normal(0, 4, 3), "gain": normal(1, 3), "read": normal(2, 3, 6), "back": normal(3, 6, 3)}
    params |= {"last": normal(4, 3), "head": normal(5, 3, 4)}
    found = described(apply, params, normal(6, 80, 4))
    (turns,) = [d for d in found.directions if d.name.startswith("rotations of the 3 coordinates")]
    assert (turns.dimension, turns.leaves) == (3, ("back", "head", "read", "write"))
    assert found.unexplained == 0


def test_a_gain_is_rescaled_against_all_its_readers_and_a_bias_is_taken_up_by_theirs():
    def apply(p, x):
        centred = x - jnp.mean(x, -1, keepdims=True)
        y = centred / jnp.std(x, -1, keepdims=True) * p["gain"][None] + p["shift"][None]
        return jnp.tanh(y @ p["a"] + p["b"][None]) + jnp.cos(y @ p["c"] + p["d"][None])

    params = {"gain": normal(0, 4), "shift": normal(1, 4), "a": normal(2, 4, 3), "b": normal(3, 3)}
    params |= {"c": normal(4, 4, 3), "d": normal(5, 3)}
    found = described(apply, params, normal(6, 80, 4))
    names = dimensions(found)
    assert names["rescaling of 4 units between a and c and gain and shift"] == 4
    assert names["offsets that cancel: b and d and shift"] == 4
    assert names["offsets that cancel: a and b"] == names["offsets that cancel: c and d"] == 3
    assert found.unexplained == 0


def test_a_bias_takes_up_what_a_kernel_adds_where_all_that_it_reads_has_one_value():
    """Points of five coordinates: along two patterns they are 0, and along another one 1/2."""
    points = jnp.concatenate([normal(0, 40, 2), jnp.full((40, 1), 0.5), jnp.zeros((40, 2))], 1) @ normal(5, 5, 5)

    def apply(p, tokens):
        return jnp.cos(points[tokens] @ p["kernel"] + p["bias"][None]) @ p["head"]

    params = {"kernel": normal(1, 5, 2), "bias": normal(2, 2), "head": normal(3, 2, 4)}
    tokens = jnp.asarray(np.random.default_rng(4).integers(0, 40, 60))
    found = described(apply, params, tokens)
    assert dimensions(found) == {
        "2 fixed patterns along axis 0 of kernel": 4,
        "offsets that cancel: bias and kernel": 2,
    }
    assert found.unexplained == 0


def test_channels_are_rescaled_through_relu_pooling_and_flattening():
    def apply(p, x):
        y = jax.lax.conv_general_dilated(x, p["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.nn.relu(y + p["bias"][None, None, None])
        y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return y.reshape(len(y), -1) @ p["dense"]

    params = {"conv": normal(0, 3, 3, 1, 3), "bias": normal(1, 3), "dense": normal(2, 12, 2)}
    found = described(apply, params, normal(3, 150, 4, 4, 1))
    assert dimensions(found) == {"rescaling of 3 units between bias and conv and dense": 3}
    assert found.unexplained == 0


def test_each_head_has_a_basis_of_its_own():
    def apply(p, x):
        q, k = (jnp.einsum("ntd,dhk->nthk", x, p[name]) for name in ("query", "key"))
        weights = jax.nn.softmax(jnp.einsum("nihk,njhk->nhij", q, k))
        return jnp.einsum("nhij,njd->nihd", weights, x).reshape(*x.shape[:2], -1)

    params = {"query": normal(0, 4, 2, 2), "key": normal(1, 4, 2, 2)}
    found = described(apply, params, normal(2, 60, 5, 4))
    assert sum(d.dimension for d in found.directions) == 2 * 2**2
    assert dimensions(found)["change of basis of 2 units in each of 2 groups between key and query"] == 4
    assert found.unexplained == 0


def two_layers(p, x):
    return jnp.tanh(x @ p["first"]) @ p["second"]


def test_a_part_of_an_axis_has_a_basis_of_its_own_where_variables_are_joined_or_divided():
    def joined(p, x):
        return jnp.cos(jnp.concatenate([jnp.tanh(x @ p["c"]), x @ p["a"] + p["b"][None]], 1) @ p["read"])

    params = {"a": normal(0, 4, 2), "b": normal(1, 2), "c": normal(2, 4, 3), "read": normal(3, 5, 4)}
    found = described(joined, params, normal(4, 80, 4))
    assert dimensions(found) == {"change of basis of 2 units between read (3 to 4 along axis 0) and a and b": 4}
    assert found.unexplained == 0

    def divided(p, x):
        y = x @ p["write"]
        return jnp.cos(y[:, :2] @ p["read"]) + jnp.tanh(y[:, 2:]) @ jnp.ones((2, 4))

    params = {"write": normal(0, 4, 4), "read": normal(1, 2, 4)}
    found = described(divided, params, normal(4, 80, 4))
    assert dimensions(found) == {"change of basis of 2 units between write (0 to 1 along axis 1) and read": 4}
    assert found.unexplained == 0


def test_complex_units_turn_their_phases():
    def apply(p, x):
        h = jax.lax.complex(x @ p["B"][0], x @ p["B"][1])
        C = jax.lax.complex(p["C"][0], p["C"][1])
        turned = h * jnp.asarray([[0.5 + 1j, 0.7j - 0.3]])
        return jnp.cos(jnp.concatenate([jnp.real(h @ C), jnp.real(turned @ C)], 1))

    params = {"B": normal(0, 2, 4, 2), "C": normal(1, 2, 2, 3)}
    found = described(apply, params, normal(2, 80, 4))
    assert dimensions(found) == {
        "rescaling of 2 units between B and C": 2,
        "change of basis of the two components of 2 units between B and C": 2,
    }
    assert found.unexplained == 0


def test_rotations_of_two_streams_that_share_a_vector_are_named():
    """Both turn with the vector, 6; and each alone as far as the vector stays, 3 and 3, of which 3 are among the 6."""

    def normed(h):
        return h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 0.1)

    def apply(p, x):
        early = jnp.tanh((normed(p["token"][None] + x @ p["first"]) * p["gain"][None]) @ p["read"])
        return normed(p["token"][None] + early @ p["out"]) @ p["head"]

    params = {"token": normal(0, 4), "first": normal(1, 3, 4), "read": normal(2, 4, 5), "out": normal(3, 5, 4)}
    found = described(apply, params | {"head": normal(4, 4, 6), "gain": normal(9, 4)}, normal(5, 120, 3))
    assert dimensions(found) == {
        "rescaling of 4 units between gain and read": 4,
        "change of basis of 4 units between head and out and token": 3,
        "rotations of the 4 coordinates that 5 leaves share": 6,
    }
    assert found.unexplained == 0


def test_what_the_data_hide_is_marked_and_says_how_many_rows_are_distinct():
    params = {"first": normal(0, 4, 5), "second": normal(1, 5, 3)}
    rows = normal(2, 6, 4).at[:3, 2:].set(0).at[3:, :2].set(0)
    found = described(two_layers, params, jnp.concatenate([rows, rows, rows]))
    assert sum(d.dimension for d in found.directions) == 35 - 18  # six rows with three outputs each
    assert all(d.data == d.dimension for d in found.directions)
    assert "6 distinct rows of 18, in 2 parts that share no input" in found.to_text(200)
    assert "due to the data: the outputs at other inputs" in found.to_text(200)
    assert found.unexplained == 0


def test_null_spaces_of_loaders_and_sums_have_the_names_of_all_data_at_once():
    params = {"first": normal(0, 4, 5), "second": normal(1, 5, 3)}
    X = normal(2, 60, 4).at[:, 1].set(0)
    of = lambda data: lg.fisher(two_layers, params, data, family=GAUSSIAN, check=False)  # noqa: E731
    loader = lg.Batches([X[:25], X[25:50], X[50:]])
    for F in (of(loader), of(X[:25]) + of(X[25:])):
        found = F.nullspace().describe()
        assert [(d.name, d.dimension, d.data) for d in found.directions] == [
            ("entries of first that no output depends on", 5, 5)
        ]
        assert found.unexplained == 0
    few = normal(3, 6, 4)
    found = of(lg.Batches([few[:4], few[4:]])).nullspace().describe()
    assert all(d.data == d.dimension for d in found.directions)
    assert "directions that these inputs do not show (6 samples)" in dimensions(found)
    assert found.unexplained == 0


def test_in_a_sum_each_part_decides_what_other_data_show():
    """The first part never reads the second input of its function, and the second's data hide it."""
    params = {"first": normal(0, 4, 5), "second": normal(1, 5, 3)}
    of = lambda apply, X: lg.fisher(apply, params, X, family=GAUSSIAN, check=False)  # noqa: E731
    blind = of(lambda p, x: two_layers(p, x * jnp.asarray([[1.0, 0, 1, 1]])), normal(2, 60, 4))
    hidden = of(two_layers, normal(3, 60, 4).at[:, 1].set(0))
    for F, data in ((blind + blind, 0), (blind + hidden, 5)):
        (direction,) = F.nullspace().describe().directions
        assert (direction.dimension, direction.data) == (5, data)


def test_a_symmetry_that_epsilon_breaks_is_found_in_a_sum_at_two_parameters():
    def apply(p, x):
        y = x @ p["weights"]
        y = y - jnp.mean(y, -1, keepdims=True)
        return y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-4) * p["gain"][None]

    X, gain = normal(2, 60, 4), normal(1, 5)
    at = [{"weights": normal(0, 4, 5), "gain": gain}, {"weights": 1.1 * normal(0, 4, 5), "gain": gain}]
    F, G = (lg.fisher(apply, params, X, family=GAUSSIAN, check=False) for params in at)
    (broken,) = (F + G).nullspace().describe().broken
    assert broken.name == "scale of weights"
    assert abs(broken.exponent - 2) < 0.1


def test_entries_that_only_the_softmax_hides_are_not_said_to_move_no_output():
    x = normal(0, 40, 2)

    def logits(p, x):
        return x @ p["w"] + jnp.sum(jnp.sin(p["phases"] * jnp.arange(1.0, 5.0))) * x[:, :1]

    params = {"w": normal(1, 2, 3), "phases": jnp.ones(4)}
    names = dimensions(described(logits, params, x, lg.families.Categorical()))
    assert names == {
        "changes of all logits alike, which the softmax does not see": 1,
        "changes of phases that no output depends on": 3,
        "shift of w along axis 1": 2,
    }
    assert dimensions(described(lambda p, x: x @ p["w"], params, x, lg.families.Categorical())) == {
        "entries of phases that no output depends on": 4,
        "shift of w along axis 1": 2,
    }


def test_an_input_that_is_always_zero_hides_entries_for_these_data_alone():
    params = {"first": normal(0, 4, 5), "second": normal(1, 5, 3)}
    found = described(two_layers, params, normal(2, 60, 4).at[:, 1].set(0))
    (direction,) = found.directions
    assert direction.name == "entries of first that no output depends on"
    assert (direction.dimension, direction.data) == (5, 5)
    assert "(due to the data)" in str(found)


def test_an_entry_that_the_function_does_not_read_is_not_due_to_the_data():
    params = {"first": normal(0, 6, 5), "second": normal(1, 5, 3)}
    found = described(lambda p, x: two_layers(p | {"first": p["first"][:4]}, x), params, normal(2, 60, 4))
    (direction,) = found.directions
    assert (direction.dimension, direction.data) == (10, 0)


def test_a_part_of_a_null_space_is_what_lies_in_it():
    null = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 4)))[0]
    account, rows = Account(null, 1e-6), np.arange(9)
    other = np.random.default_rng(1).normal(size=(9, 2))
    assert account.part(rows, other).coordinates.shape[1] == 0
    assert account.part(rows, null[:, :1] + 0.1 * other[:, :1]).coordinates.shape[1] == 0
    mixed = np.hstack([other, other[:, :1] + null[:, :1]])
    assert account.part(rows, mixed).coordinates.shape[1] == 1
    part = account.part(rows, np.hstack([null[:, :2], other]))
    assert account.take(part.coordinates).shape[1] == 2
    assert account.take(part.coordinates).shape[1] == 0
    assert (account.left, account.rest().shape) == (2, (4, 2))
    assert np.allclose(account.explained.T @ account.rest(), 0)


def test_directions_are_divided_by_the_members_that_they_move():
    """Two units; of three members the first two trade in both, and the third alone is free in the second."""
    coefficients = np.zeros((6, 3))
    coefficients[[0, 1], 0] = 1, -1
    coefficients[[3, 4], 1] = 1, -1
    coefficients[5, 2] = 1
    mixing = np.random.default_rng(0).normal(size=(3, 3))
    account = Account(np.eye(6), 1e-6)
    part = account.part(np.arange(6), coefficients @ mixing)
    part = part._replace(coefficients=coefficients @ mixing @ part.coefficients)
    found = {tuple(moved): units for _, units, moved in by_unit(part, np.repeat([0, 1], 3), np.tile([0, 1, 2], 2))}
    assert found == {(0, 1): [0, 1], (2,): [1]}


def test_spaces_of_a_program_have_their_writers_readers_and_gains():
    params = {"write": normal(0, 4, 3), "gain": normal(1, 3), "read": normal(2, 3, 5)}
    spaces = find_spaces(turned, params, normal(3, 7, 4))
    gain, read, write = range(3)
    (stream,) = spaces.labels[gain]
    assert spaces.labels[read][0] == spaces.labels[write][1] == stream
    (found,) = spaces.gains
    writing = next(m for m in spaces.members if m.leaf == write and m.atom == stream)
    reading = next(m for m in spaces.members if m.leaf == read and m.atom == stream)
    assert (writing.reads, writing.slot, writing.cut) == (False, 1, found.before)
    assert (reading.reads, reading.slot, reading.cut) == (True, 0, found.after)


def test_a_square_kernel_reads_along_one_axis_and_writes_along_the_other():
    params = {"w": normal(0, 4, 4)}
    spaces = find_spaces(lambda p, x: x + jnp.tanh(x) @ p["w"].T, params, normal(1, 7, 4))
    assert len(set(spaces.labels[0])) == 1
    assert {(m.slot, m.reads) for m in spaces.members} == {(0, False), (1, True)}


@pytest.mark.parametrize("rows", [[3, 3, 3, 3], [0, 1, 1, 0]])
def test_other_whole_numbers_are_in_the_range_of_those_given(rows):
    """From the smallest to the largest, both included: where there is one value, there are no others."""
    table = {"rows": normal(5, 4, 2)}
    found = described(lambda p, tokens: p["rows"][tokens], table, jnp.asarray(rows))
    assert found.unexplained == 0
    assert sum(d.dimension for d in found.directions) == 8 - 2 * len(set(rows))
    assert all(d.data == 0 for d in found.directions)
