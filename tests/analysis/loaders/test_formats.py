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
from analysis.experiments.loaders import captions, corpus, images, pens, questions, reviews, sentences, strokes, vectors
from lngeom.claims.data import DataError

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


@pytest.mark.parametrize(
    ("name", "sizes"), [("sick", (1, 1)), ("sick of 12 columns", (7, 4)), ("sick of three files", (5, 3))]
)
def test_sick_comes_in_three_forms_and_keeps_its_splits(tmp_path, name, sizes):
    FORMATS[name].write(tmp_path)
    sides = sentences.read_sick_splits(tmp_path)
    assert tuple(map(len, sides)) == sizes
    if name == "sick of 12 columns":
        assert [p.score for p in sides[0][:3]] == [1, 2, 3]
        text = (tmp_path / "SICK.txt").read_text()
        (tmp_path / "SICK.txt").write_text(text.replace("TRIAL", "OTHER"))
        with pytest.raises(DataError, match="line 7: expected TRAIN or TRIAL or TEST; got 'OTHER'"):
            sentences.read_sick_splits(tmp_path)
    if name == "sick of three files":
        (tmp_path / "SICK_test_annotated.txt").unlink()
        with pytest.raises(DataError, match=r"expected SICK_train.txt and SICK_test_annotated.txt"):
            sentences.read_sick_splits(tmp_path)


@pytest.mark.parametrize("name", ["vectors", "vectors of bytes"])
def test_vectors_round_trip_and_only_those_wanted_are_kept(tmp_path, name):
    FORMATS[name].write(tmp_path)
    (path,) = tmp_path.iterdir()
    found = vectors.read_vectors(path, formats.VECTORS)
    assert list(found) == list(formats.VECTORS)
    assert all(np.array_equal(found[word], v) for word, v in formats.VECTORS.items())
    assert list(vectors.read_vectors(path, {"dog", "none"})) == ["dog"]
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(vectors.read_vectors(packed, {"dog"})) == ["dog"]
    path.write_bytes(path.read_bytes().replace(b"7 2", b"6 2", 1))
    with pytest.raises(DataError, match="more than the 6 words that its first line says"):
        vectors.read_vectors(path, {"dog"})


def test_a_story_is_cut_after_its_first_sentences():
    words = ["@entity1", "saw", "it", ".", "was", "it", "?", "yes", "!", "no", ".", "and", "so", "on"]
    assert questions.first_sentences(words, 4) == words[:11]
    assert questions.first_sentences(words, 5) == words
    assert questions.first_sentences(words, 1) == words[:4]


def test_no_sick_is_none(tmp_path):
    assert sentences.read_sick_splits(tmp_path) is None


def test_lines_of_handwriting_without_text_are_left_out_and_counted(tmp_path):
    formats.write_iam(tmp_path)
    folder, text = tmp_path / "lineStrokes" / "a01" / "a01-000", tmp_path / "ascii" / "a01" / "a01-000"
    rows = [f"line {k}" for k in range(1, 22)]
    (text / "a01-000u.txt").write_text("CSR:\n\n" + "\n".join(rows[:10]) + "%%%%%%" + "\n".join(rows[10:]) + "\n")
    for k in range(2, 23):
        (folder / f"a01-000u-{k:02}.xml").write_text(formats.INK)
    (text / "z01-000z.txt").write_text("OCR:\n\nsomething\n")
    (folder / "z01-000z-01.xml").write_text(formats.INK)
    skipped = []
    found = list(strokes.read_iam(tmp_path, skipped.append))
    assert [line.text for line in found] == rows, "a row of percent signs joins two lines"
    assert len(skipped) == 2
    assert "a01-000u-22.xml: line 22, but" in skipped[0]
    assert "z01-000z" in skipped[1]
    (text / "a01-000u.txt").unlink()
    with pytest.raises(DataError, match="23 of 23 lines have no text"):
        list(strokes.read_iam(tmp_path))
    (text / "a01-000u.txt").write_text("CSR:\n\n5 % of it\n")
    assert strokes.read_transcription(text / "a01-000u.txt") == ["5 % of it"]


def test_reviews_and_pens_round_trip(tmp_path):
    formats.write_reviews(tmp_path)
    formats.write_pens(tmp_path)
    found = list(reviews.read_reviews(tmp_path))
    assert {r.source for r in found} == set(reviews.SOURCES)
    assert [" ".join(s) for s in reviews.sentences_of(found[0].text)] == [
        "it was night .", "the cat slept !", 'the dog , " rex " , did not .', "then it was day .",
    ]  # fmt: skip
    positions, digits = pens.read_pens(tmp_path)
    assert positions.shape == (60, 8, 2)
    assert digits.tolist() == [k % 10 for k in range(60)]


def test_a_corpus_is_encoded_once_and_gives_every_triple(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "CHUNK", 3)
    (tmp_path / "books").mkdir()
    books = [tmp_path / "books" / f"{k}.txt" for k in range(3)]
    for k, (book, count) in enumerate(zip(books, (5, 2, 4), strict=True)):
        book.write_text("".join(f"b{k} s{i}\n" for i in range(count)))
    reads = []

    def read():
        reads.append(1)
        return corpus.sentences_of(books)

    def numbering(stories):
        names = {w: 3 + i for i, w in enumerate(sorted(corpus.counted(stories)))}
        return lambda words: [*(names[w] for w in words), 1]

    found, number = corpus.encoded(tmp_path, books, read, numbering, {})
    assert found.triples() == 3 + 0 + 2
    said, lengths = found.take(np.arange(5), 4)
    assert (lengths == 3).all()
    assert (said[..., 3] == 0).all()
    expected = [[number([f"b{k}", f"s{i + j}"]) for j in range(3)] for k, n in ((0, 3), (2, 2)) for i in range(n)]
    np.testing.assert_array_equal(said[..., :3], expected)
    assert isinstance(found.symbols, np.memmap)
    assert len(reads) == 2
    corpus.encoded(tmp_path, books, read, numbering, {})
    assert len(reads) == 3, "words are counted, and nothing is written again"
    books[0].write_text("b0 s0\nb0 s1\n")
    assert corpus.encoded(tmp_path, books, read, numbering, {})[0].triples() == 2
    books[2].unlink()
    with pytest.raises(DataError, match="no three sentences in a row"):
        corpus.encoded(tmp_path, books[:2], lambda: corpus.sentences_of(books[:2]), numbering, {})


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


@pytest.fixture(scope="session")
def _watched():
    """Watches to the end of the process: a hook cannot be taken back, and it is called for much else."""
    sys.addaudithook(_watch)


@pytest.mark.usefixtures("_watched")
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


@pytest.mark.usefixtures("_watched")
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
        ("vectors", "vectors.txt", b"two 2\n", "expected the number of words and the size of a vector"),
        ("vectors", "vectors.txt", b"2 2\ncat 1 2\ndog 1\n", r"line 3: expected a word and 2 numbers; got b'dog 1"),
        ("vectors", "vectors.txt", b"2 2\ncat 1 2\n", "1 words, where its first line says 2"),
        ("vectors", "vectors.txt", b"1 2\ncat 1 nan\n", "word 1: 'cat' has numbers that are not finite"),
        ("vectors of bytes", "vectors.bin", b"2 2\ncat 12345678\ndog 1234", "word 2: truncated"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, file, content, message):
    FORMATS[name].write(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        FORMATS[name].read(tmp_path)
