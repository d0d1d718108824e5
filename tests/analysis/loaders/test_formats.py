"""Every format is read as it was written, and what is damaged or hostile is refused in one clear sentence."""

import gzip
import io
import pickle
import signal
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from analysis.experiments.loaders import captions, images, questions, sentences, strokes
from lngeom.data import DataError

from tests.analysis.loaders import formats
from tests.analysis.loaders.formats import FORMATS


@pytest.fixture
def sample(tmp_path, request):
    FORMATS[request.param].write(tmp_path)
    return tmp_path


def only(name):
    return pytest.mark.parametrize("sample", [name], indirect=True)


@pytest.mark.parametrize("name", ["idx", "npz"])
def test_mnist_round_trip(tmp_path, name):
    FORMATS[name].write(tmp_path)
    found = images.read_mnist(tmp_path, train=7)
    np.testing.assert_allclose(found.train_images * 255, formats.IMAGES[:7].reshape(7, 16), rtol=1e-6)
    assert list(found.test_labels) == list(formats.LABELS)


@only("amat")
def test_binarized_round_trip(sample):
    assert all(np.array_equal(v, formats.BITS) for v in images.read_binarized_mnist(sample).values())


@pytest.mark.parametrize("nested", [True, False])
def test_handwriting_round_trip(tmp_path, nested):
    folder = tmp_path / "IAM" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    formats.write_iam(folder)
    (line,) = strokes.read_iam(tmp_path)
    assert line.text == "A move to stop"
    np.testing.assert_array_equal(line.points, [[10, -20, 0], [11, -22, 1], [15, -20, 1]])


@only("captions")
def test_captions_round_trip(sample):
    found = captions.read_split(sample, "train")
    np.testing.assert_array_equal(found.features, formats.FEATURES)
    assert isinstance(found.features, np.memmap)
    assert found.captions == [formats.WORDS, formats.WORDS]


@only("karpathy")
def test_karpathy_round_trip(sample):
    assert captions.read_karpathy(sample / "dataset_coco.json") == {"train": [formats.WORDS], "val": [formats.WORDS]}


@only("cnn")
def test_questions_round_trip(sample):
    (found,) = questions.read_questions(sample, "test")
    assert found.context == ["@entity1", "saw", "@entity2", "."]
    assert found.answer == "@entity1"
    assert found.entities == {"@entity1": "Ann", "@entity2": "Bob: the first"}


def test_sentences_round_trip(tmp_path):
    formats.write_sick(tmp_path)
    formats.write_classes(tmp_path)
    assert [p.score for p in sentences.read_sick(tmp_path / "SICK.txt")] == [4.7, 1.0]
    assert sentences.read_classes(tmp_path, "SUBJ") == (["a café", "of no interest"] * 2, [1, 1, 0, 0])


HOSTILE = [
    b"\0",
    b"\xff\xfe",
    b"<!DOCTYPE x [<!ENTITY e 'ee'>]>",
    b"&e;",
    b"../../etc/passwd",
    b"nan",
    b"1e999",
    b"\n\n",
    b"[" * 2000,
]


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with a few bits flipped, or pieces cut out, doubled, or replaced by something hostile."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        a, b = sorted(int(k) for k in rng.integers(0, len(data) + 1, 2))
        match rng.integers(0, 5):
            case 0 if data:
                data[a % len(data)] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del data[a:b]
            case 2:
                data[b:b] = data[a:b]
            case 3:
                data[a:a] = HOSTILE[rng.integers(len(HOSTILE))]
            case _:
                del data[b:]
    return bytes(data)


OPENED: list[str] = []
WATCHING = False


def _watch(event, arguments):
    if WATCHING and event == "open" and isinstance(arguments[0], (str, Path)):
        OPENED.append(str(arguments[0]))


sys.addaudithook(_watch)


@pytest.mark.filterwarnings("ignore:Reading")  # a mutated header may pass for one of Python 2
@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files_are_read_or_refused(name, tmp_path):
    global WATCHING
    folder = tmp_path / "data"
    folder.mkdir()
    FORMATS[name].write(folder)
    FORMATS[name].read(folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    rng, refused, unnamed = np.random.default_rng(0), 0, 0
    OPENED.clear()

    def hang(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hang)
    try:
        for _ in range(1000):
            path = files[rng.integers(len(files))]
            original = path.read_bytes()
            path.write_bytes(mutated(original, rng))
            signal.setitimer(signal.ITIMER_REAL, 10)
            WATCHING = True
            try:
                FORMATS[name].read(folder)
            except DataError as error:
                refused += str(folder) in str(error)
                unnamed += str(folder) not in str(error)
            finally:
                WATCHING = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                path.write_bytes(original)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert refused > 30
    assert unnamed == 0
    assert OPENED
    assert all(Path(p).resolve().is_relative_to(folder.resolve()) for p in OPENED), set(OPENED)


def test_the_watch_sees_a_file_outside(tmp_path):
    global WATCHING
    OPENED.clear()
    WATCHING = True
    (tmp_path / "x").touch()
    with (tmp_path / "x").open():
        WATCHING = False
    assert str(tmp_path / "x") in OPENED


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_file_is_named(name, tmp_path):
    with pytest.raises(DataError, match=r"no such f|cannot be read|expected"):
        FORMATS[name].read(tmp_path)


@only("npz")
def test_pickles_are_refused(sample):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (sample / "ran",))

    np.savez(sample / "mnist.npz", x_train=np.array([Bomb()], dtype=object))
    with pytest.raises(DataError, match="never loaded"):
        images.read_mnist(sample)
    (sample / "train.npy").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="never loaded"):
        captions.array(sample / "train.npy")
    assert not (sample / "ran").exists()


@only("npz")
def test_paths_in_archives_are_refused(sample):
    with zipfile.ZipFile(sample / "mnist.npz", "a") as archive:
        buffer = io.BytesIO()
        np.save(buffer, np.ones(2))
        archive.writestr("../evil.npy", buffer.getvalue())
    with pytest.raises(DataError, match=r"'\.\./evil\.npy' is a path"):
        images.read_mnist(sample)


@only("iam")
def test_xml_bombs_are_refused(sample):
    path = next(sample.rglob("*.xml"))
    path.write_text(
        '<!DOCTYPE b [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><WhiteboardCaptureSession>&b;</WhiteboardCaptureSession>'
    )
    with pytest.raises(DataError, match="refused"):
        list(strokes.read_iam(sample))


@only("idx")
def test_gzip_bombs_stop_at_the_size_that_the_header_says(sample):
    bomb = formats.idx(formats.LABELS) + bytes(1 << 26)
    (sample / "t10k-labels.idx1-ubyte").write_bytes(formats.idx(formats.LABELS))
    (sample / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bomb))
    with pytest.raises(DataError, match="more than 9 bytes of data, where its header says 9"):
        images.read_mnist(sample, train=9)


@only("captions")
def test_links_out_of_the_folder_are_refused(sample, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "train.txt"
    outside.write_text((sample / "train.txt").read_text())
    (sample / "train.txt").unlink()
    (sample / "train.txt").symlink_to(outside)
    with pytest.raises(DataError, match="leads out of"):
        captions.read_split(sample, "train")


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("idx", "train-labels.idx1-ubyte", b"\x00\x00\x0d\x01\x00\x00\x00\x00", "begins with 00 00 0d 01"),
        (
            "idx",
            "train-labels.idx1-ubyte",
            formats.idx(formats.LABELS)[:-2],
            "7 bytes of data, where its header says 9",
        ),
        ("idx", "train-images-idx3-ubyte.gz", b"not gzip", "truncated or not gzip"),
        ("amat", "binarized_mnist_test.amat", b"0 1\n0 2\n", "line 2: expected 0s and 1s; got '2'"),
        ("amat", "binarized_mnist_test.amat", b"0 1\n0\n", "1 entries, where the first line has 2"),
        ("captions", "train.txt", "café".encode("latin-1"), "line 1: not utf-8 text"),
        ("captions", "train.txt", b"a\nb\n", "expected 5 lines for each image"),
        ("cnn", "questions/test/0a.question", b"u\n\nc\n\nq\n", "got 3 blocks"),
        ("sick", "SICK.txt", b"a\tb\n", "expected the columns pair_ID"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, file, content, message):
    FORMATS[name].write(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        FORMATS[name].read(tmp_path)
