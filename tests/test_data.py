import gzip
import subprocess
import sys

import numpy as np
import pytest
from lngeom.claims import data
from lngeom.claims.data import DataError, load

RNG = np.random.default_rng(0)


def test_digits_are_those_of_scikit_learn_with_and_without_its_file(monkeypatch):
    from sklearn.datasets import load_digits

    images = load_digits(return_X_y=True)[0]
    assert np.array_equal(data._digits(), images)
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    assert np.array_equal(data._digits(), images)


def test_digits_are_deficient_and_said_to_be():
    digits = load("digits")
    assert digits.shape == (1797, 64)
    assert digits.rank == 61
    assert digits.notes[0].startswith("3 of 64 columns are constant (3 of them zero)")
    assert np.mean(digits.inputs**2) == pytest.approx(1.0)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_every_format_gives_the_same_data(tmp_path, suffix):
    values = RNG.normal(size=(20, 4))
    path = tmp_path / f"values{suffix}"
    match suffix:
        case ".npy":
            np.save(path, values)
        case ".npz":
            np.savez(path, X=values, y=np.arange(20))
        case ".csv":
            np.savetxt(path, values, delimiter=",", header="a,b,c,d", comments="", fmt="%.17g")
    found = load(str(path))
    assert found.inputs == pytest.approx(values / np.sqrt(np.mean(values**2)))
    assert found.name == path.name


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ";"), (".tsv", "\t"), (".csv.gz", ","), (".tsv.gz", "\t")])
@pytest.mark.parametrize("header", ["", "a{0}b{0}c{0}d\n"])
def test_other_separators_and_compressed_files_are_read(tmp_path, suffix, mark, header):
    values = RNG.normal(size=(20, 4))
    text = header.format(mark) + "".join(mark.join(map(repr, row)) + "\n" for row in values.tolist())
    path = tmp_path / f"values{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    assert np.array_equal(data.read(path), values)


def test_a_compressed_array_is_read(tmp_path):
    values = RNG.normal(size=(20, 4))
    with gzip.open(tmp_path / "values.npy.gz", "wb") as file:
        np.save(file, values)
    assert np.array_equal(data.read(tmp_path / "values.npy.gz"), values)


def test_rows_of_zeros_are_left_out_and_large_data_is_cut(tmp_path):
    values = RNG.normal(size=(3000, 120))
    values[5] = 0
    np.save(tmp_path / "large.npy", values)
    found = load(str(tmp_path / "large.npy"))
    assert found.inputs.shape == (2048, 96)
    assert [n.split()[0] for n in found.notes] == ["1", "2048", "120"]


def test_huge_values_do_not_overflow(tmp_path):
    np.save(tmp_path / "huge.npy", 1e300 * RNG.normal(size=(10, 3)))
    assert np.isfinite(load(str(tmp_path / "huge.npy")).inputs).all()


READ = """
import resource, sys
from lngeom.claims.data import load

limit = 50 * 2**30  # the map takes 24 GB of addresses, and a copy would take 48 more
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = load(sys.argv[1], seed=3)
print(found.inputs.shape, found.shape, found.rank, found.notes[0])
"""


def test_of_a_file_of_24_gigabytes_the_rows_that_are_drawn_are_read_alone(tmp_path):
    path, count = tmp_path / "sparse.npy", 60_000_000
    empty = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, 100))
    start = empty.offset
    del empty
    try:
        if path.stat().st_blocks * 512 > 2**30:
            pytest.skip("the file system keeps no sparse files")
        rows = np.sort(np.random.default_rng(3).choice(count, 2048, replace=False))
        with path.open("r+b") as file:
            for row, values in zip(rows, RNG.normal(size=(2048, 100)).astype(np.float32), strict=True):
                file.seek(start + 400 * int(row))
                file.write(values.tobytes())
        done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, check=False)
    finally:
        path.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    expected = "(2048, 96) (60000000, 100) 96 2048 of 60,000,000 rows drawn at random; the others were not read\n"
    assert done.stdout == expected


def test_a_small_file_is_not_kept_open_by_a_map(tmp_path):
    np.save(tmp_path / "values.npy", RNG.normal(size=(20, 4)))
    assert type(data.read(tmp_path / "values.npy")) is np.ndarray


@pytest.mark.parametrize("name", ["values.npz", "values.npy.gz"])
def test_an_array_that_must_be_read_whole_and_does_not_fit_is_refused(tmp_path, monkeypatch, name):
    values, path = RNG.normal(size=(20, 4)), tmp_path / name
    if name.endswith(".npz"):
        np.savez(path, X=values)
    else:
        with gzip.open(path, "wb") as file:
            np.save(file, values)
    monkeypatch.setattr(data, "available_memory", lambda: 2 * values.nbytes)
    assert np.array_equal(data.read(path), values)
    monkeypatch.setattr(data, "available_memory", lambda: 2 * values.nbytes - 2)
    with pytest.raises(DataError, match=r"takes 640 B, more than half of the free 1.25 KiB: save it as .npy"):
        data.read(path)


def test_numpy_never_advises_to_load_pickles_through_us(tmp_path):
    for name, content in (("text", b"hello"), ("header", b"\x93NUMPY\x01\x00garbage"), ("nothing", b"\x00" * 40)):
        (tmp_path / f"{name}.npy").write_bytes(content)
        with pytest.raises(DataError, match="not a NumPy array of numbers: it is damaged") as caught:
            load(str(tmp_path / f"{name}.npy"))
        assert "allow_pickle" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_text_that_is_too_long_and_rows_that_are_too_wide_are_refused(tmp_path, monkeypatch):
    (tmp_path / "long.csv").write_text("1,2\n" * 100)
    np.save(tmp_path / "wide.npy", RNG.normal(size=(3, 40)))
    monkeypatch.setattr(data, "MOST_TEXT", 399)
    monkeypatch.setattr(data, "MOST_FEATURES", 39)
    with pytest.raises(DataError, match=r"more than 399 B of text: save it as \.npy"):
        load(str(tmp_path / "long.csv"))
    with pytest.raises(DataError, match="expected at most 39 columns; got 40"):
        load(str(tmp_path / "wide.npy"))


class Hostile:
    """Would create a file if it were ever unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def bad_files(folder):
    """Name → (path, what its error says)."""
    rows = RNG.normal(size=(6, 3))
    marker = folder / "unpickled"
    objects = np.array([Hostile(marker)], dtype=object)
    nans = rows.copy()
    nans[2, 1] = np.nan
    arrays = {
        "nan.npy": (nans, "row 3, column 2"),
        "row.npy": (rows[:1], "at least 3 rows and 2 columns; got 1 and 3"),
        "column.npy": (rows[:, :1], "got 6 and 1"),
        "cube.npy": (rows[None], "got 3 axes, shape (1, 6, 3)"),
        "vector.npy": (rows[0], "got 1 axis,"),
        "strings.npy": (np.array([["a", "b"]] * 4), "expected real numbers; got dtype <U1"),
        "complex.npy": (rows + 1j, "got dtype complex128"),
        "empty.npy": (rows[:0], "got 0 and 3"),
        "constant.npy": (np.ones((6, 3)), "all rows are alike"),
        "zeros.npy": (np.zeros((6, 3)), "all rows are alike or zero"),
    }
    for name, (values, message) in arrays.items():
        np.save(folder / name, values)
        yield folder / name, message
    np.savez(folder / "objects.npz", X=objects)
    np.save(folder / "objects.npy", objects)
    yield folder / "objects.npz", "holds pickled objects, which are never loaded"
    yield folder / "objects.npy", "holds pickled objects, which are never loaded"
    np.savez(folder / "several.npz", a=rows, b=rows)
    yield folder / "several.npz", "holds the arrays ['a', 'b']"
    for name, text, message in (
        ("text.csv", "once upon a time\nthere was\n", "is not a number"),
        ("strings.csv", "1,2\n3,four\n5,6\n", "line 2, column 2: 'four' is not a number"),
        ("ragged.csv", "1,2\n3,4,5\n5,6\n", "line 2: 3 columns, where the first row has 2"),
        ("labels.csv", "a,b,kind\n1,2,x\n3,4,y\n", "column 3 ('kind') holds text in every row, such as 'x'"),
        ("classes.csv", "1,2,x\n3,4,y\n", "column 3 holds text in every row, such as 'x': a label is no input"),
        ("decimals.csv", "1,5;2\n3;4\n", "line 1, column 1: '1,5' is not a number: write decimals with a point"),
        ("gap.tsv", "1\t2\n3\t\n", "line 2, column 2: the cell is empty"),
        ("header.csv", "a,b\n", "no rows of numbers"),
        ("empty.csv", "", "the file is empty"),
        ("notes.txt", "1,2\n", "cannot read .txt"),
        ("fake.npz", "this is no archive", "not an archive"),
        ("fake.npy", "this is no array", "not a NumPy array"),
    ):
        (folder / name).write_text(text)
        yield folder / name, message
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 4)
    yield folder / "binary.csv", "not a text file"
    (folder / "fake.csv.gz").write_text("1,2\n")
    yield folder / "fake.csv.gz", "cannot be read: Not a gzipped file"
    (folder / "cut.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 99)[:-9])
    yield folder / "cut.csv.gz", "not a text file"
    (folder / "table.xlsx.gz").write_bytes(b"1")
    yield folder / "table.xlsx.gz", "cannot read .xlsx.gz; expected .npz, .npy, .csv or .tsv, or one of these with .gz"
    np.savez(folder / "cut.npz", X=rows)
    (folder / "cut.npz").write_bytes((folder / "cut.npz").read_bytes()[:100])
    yield folder / "cut.npz", "not an archive"
    yield folder / "missing.npy", "no such file"
    yield folder, "cannot read a file without a suffix"


def test_bad_files_get_one_clear_error(tmp_path):
    for path, message in bad_files(tmp_path):
        with pytest.raises(DataError) as caught:
            load(str(path))
        assert message in str(caught.value), (path.name, str(caught.value))
    assert not (tmp_path / "unpickled").exists()
