"""Readers on small files of the official formats, on damaged ones, without network, and on the real ones if at hand."""

import gzip
import hashlib
import inspect
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image
from sklearn.datasets import load_digits

from fedminimax.data import datasets
from fedminimax.errors import InputError

REAL = Path(os.environ.get("FEDMINIMAX_DATA") or "nowhere")
IDX_NAMES = list(datasets._MNIST)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def cifar_record(label, image):
    return bytes([label]) + image.transpose(2, 0, 1).tobytes()


def sha256(contents):
    return hashlib.sha256(contents).hexdigest()


@pytest.fixture
def offline(monkeypatch):
    """No network: what requests raises when a host cannot be reached."""

    def refuse(url, *args, **kwargs):
        raise requests.exceptions.ConnectionError(f"Max retries exceeded with url: {url}\nName or service not known")

    monkeypatch.setattr(requests, "get", refuse)


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """A folder with a data set of 5 + 3 images in MNIST's files, whose checksums are taken for the published ones."""
    generator = np.random.default_rng(0)
    arrays = [
        generator.integers(0, 256, (5, 28, 28), np.uint8),
        np.array([3, 1, 4, 1, 5], np.uint8),
        generator.integers(0, 256, (3, 28, 28), np.uint8),
        np.array([9, 2, 6], np.uint8),
    ]
    folder = tmp_path / "mnist"
    folder.mkdir()
    checksums = {}
    for name, array in zip(IDX_NAMES, arrays, strict=True):
        (folder / name).write_bytes(gzip.compress(idx(array)))
        checksums[name] = ("0" * 32, sha256(idx(array)))
    monkeypatch.setattr(datasets, "_MNIST", checksums)
    return tmp_path, arrays


@pytest.fixture
def small_cifar(monkeypatch):
    """CIFAR-10's six files with two images each, whose checksums are taken for the published ones."""
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (6, 2, 32, 32, 3), np.uint8)
    labels = generator.integers(0, 10, (6, 2))
    files = {
        name: b"".join(cifar_record(label, image) for label, image in zip(labels[i], images[i], strict=True))
        for i, name in enumerate(datasets._CIFAR10)
    }
    monkeypatch.setattr(datasets, "_CIFAR10", {name: sha256(contents) for name, contents in files.items()})
    return files, images, labels


def write_archive(path, files, folder="cifar-10-batches-bin"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, contents in {**files, "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))


def test_digits_needs_no_file_and_is_stratified(offline, tmp_path):
    data = datasets.load("digits", tmp_path)
    assert data.name == "digits"
    assert data.classes == 10
    assert data.train["inputs"].shape == (1442, 64)
    assert data.test["inputs"].shape == (355, 64)
    for part in (data.train, data.test):
        assert part["inputs"].dtype == np.float32
        assert part["labels"].dtype == np.int32
        assert part["inputs"].min() == 0
        assert part["inputs"].max() == 1
    shares = np.bincount(data.test["labels"]) / np.bincount(np.concatenate([data.train["labels"], data.test["labels"]]))
    assert np.all(np.abs(shares - 0.2) < 0.01)


def test_digits_is_the_same_every_time_and_divides_scikit_learns_set():
    first, second = datasets.load("digits"), datasets.load("digits")
    assert np.array_equal(first.train["inputs"], second.train["inputs"])
    pixels, labels = load_digits(return_X_y=True)
    both = np.concatenate([first.train["inputs"], first.test["inputs"]]) * 16
    both = np.column_stack([both, np.concatenate([first.train["labels"], first.test["labels"]])])
    original = np.column_stack([pixels, labels])
    assert np.array_equal(both[np.lexsort(both.T)], original[np.lexsort(original.T)])


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 28, 28)])
def test_parse_idx(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    parsed = datasets.parse_idx(idx(array), "file")
    assert parsed.dtype == np.uint8
    assert np.array_equal(parsed, array)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c[:-1], "announces 6 entries, (2, 3), and has 5"),
        (lambda c: c + b"\x00", "announces 6 entries, (2, 3), and has 7"),
        (lambda c: b"\x00\x00\x0d" + c[3:], "not an IDX file of unsigned bytes"),
        (lambda c: b"\x1f\x8b" + c[2:], "not an IDX file of unsigned bytes"),
        (lambda c: c[:9], "not an IDX file of unsigned bytes"),
        (lambda c: c[:3] + b"\x00" + c[4:], "not an IDX file of unsigned bytes"),
        (lambda c: b"", "not an IDX file of unsigned bytes"),
        (lambda c: c[:4] + b"\xff" * 8 + c[12:], "(4294967295, 4294967295)"),
    ],
)
def test_parse_idx_names_the_damaged_file(damage, message):
    contents = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))
    with pytest.raises(InputError) as error:
        datasets.parse_idx(damage(contents), "some-file")
    assert str(error.value).startswith("some-file")
    assert message in str(error.value)


def test_mnist_from_its_files(small_mnist):
    folder, (train_images, train_labels, test_images, test_labels) = small_mnist
    data = datasets.load("mnist", folder)
    assert data.train["inputs"].shape == (5, 28, 28, 1)
    assert data.train["inputs"].dtype == np.float32
    assert np.array_equal(np.rint(data.train["inputs"][..., 0] * 255), train_images)
    assert np.array_equal(np.rint(data.test["inputs"][..., 0] * 255), test_images)
    assert data.train["inputs"].max() <= 1
    assert data.train["labels"].dtype == np.int32
    assert np.array_equal(data.train["labels"], train_labels)
    assert np.array_equal(data.test["labels"], test_labels)


def test_folder_from_the_environment(small_mnist, monkeypatch):
    folder, arrays = small_mnist
    monkeypatch.setenv("FEDMINIMAX_DATA", str(folder))
    assert np.array_equal(datasets.load("mnist").train["labels"], arrays[1])


def test_fashion_mnist_has_its_own_folder_and_two_spellings(small_mnist, monkeypatch):
    folder, arrays = small_mnist
    (folder / "mnist").rename(folder / "fashion-mnist")
    monkeypatch.setattr(datasets, "_FASHION_MNIST", datasets._MNIST)
    for name in ("fashion_mnist", "fashion-mnist"):
        data = datasets.load(name, folder)
        assert data.name == "fashion_mnist"
        assert np.array_equal(data.train["labels"], arrays[1])


def test_other_contents_of_the_right_form_are_refused(small_mnist):
    folder, arrays = small_mnist
    path = folder / "mnist" / IDX_NAMES[1]
    path.write_bytes(gzip.compress(idx(arrays[1][::-1].copy())))
    with pytest.raises(InputError, match="does not have the published contents") as error:
        datasets.load("mnist", folder)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("damage", [lambda c: c[:-20], lambda c: b"junk", lambda c: b"", lambda c: c[:40] + b"~" * 9])
def test_damaged_gzip_is_named(small_mnist, damage):
    folder, _ = small_mnist
    path = folder / "mnist" / IDX_NAMES[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as error:
        datasets.load("mnist", folder)
    assert str(path) in str(error.value)
    assert "downloaded again" in str(error.value)


def test_without_file_and_network_one_sentence_says_what_is_missing(offline, tmp_path):
    for name, file in [
        ("mnist", IDX_NAMES[0]),
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("cifar100", "cifar-100-binary.tar.gz"),
        ("tiny_imagenet", "tiny-imagenet-200.zip"),
    ]:
        with pytest.raises(InputError) as error:
            datasets.load(name, tmp_path)
        message = str(error.value)
        assert message.startswith(file)
        assert str(tmp_path / name) in message
        assert "FEDMINIMAX_DATA" in message
        assert "\n" not in message


def test_missing_files_are_downloaded_with_their_checksum(small_mnist, monkeypatch):
    folder, arrays = small_mnist
    official = {name: (folder / "mnist" / name).read_bytes() for name in IDX_NAMES}
    (folder / "mnist" / IDX_NAMES[3]).unlink()
    asked = []

    def retrieve(url, known_hash, fname, path, **kwargs):
        asked.append((url, known_hash))
        (path / fname).write_bytes(official[fname])

    monkeypatch.setattr("pooch.retrieve", retrieve)
    assert np.array_equal(datasets.load("mnist", folder).test["labels"], arrays[3])
    assert asked == [(f"https://storage.googleapis.com/cvdf-datasets/mnist/{IDX_NAMES[3]}", "md5:" + "0" * 32)]


def test_a_download_with_another_checksum_is_refused(small_mnist, monkeypatch):
    folder, _ = small_mnist
    path = folder / "mnist" / IDX_NAMES[3]
    path.unlink()

    def other(url, **kwargs):
        response = requests.Response()
        response.status_code, response.raw = 200, io.BytesIO(b"not the file")
        return response

    monkeypatch.setattr(requests, "get", other)
    with pytest.raises(InputError, match="could not be downloaded"):
        datasets.load("mnist", folder)
    assert not path.exists()


@pytest.mark.parametrize("parent", ["", "cifar10", "cifar-10"])
@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar10_from_the_archive_or_its_directory(small_cifar, tmp_path, parent, unpacked):
    files, images, labels = small_cifar
    if unpacked:
        folder = tmp_path / parent / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        for name, contents in files.items():
            (folder / name).write_bytes(contents)
    else:
        write_archive(tmp_path / parent / "cifar-10-binary.tar.gz", files)
    data = datasets.load("cifar-10", tmp_path)
    assert data.name == "cifar10"
    assert data.train["inputs"].shape == (10, 32, 32, 3)
    assert data.train["inputs"].dtype == np.float32
    assert data.train["inputs"].flags.c_contiguous
    assert np.array_equal(np.rint(data.train["inputs"] * 255), images[:5].reshape(10, 32, 32, 3))
    assert np.array_equal(np.rint(data.test["inputs"] * 255), images[5])
    assert np.array_equal(data.train["labels"], labels[:5].ravel())
    assert np.array_equal(data.test["labels"], labels[5])
    assert data.test["labels"].dtype == np.int32


def test_parse_cifar_batch_counts_its_records():
    with pytest.raises(InputError, match="some-batch has 3072 bytes"):
        datasets.parse_cifar_batch(bytes(3072), "some-batch")
    with pytest.raises(InputError, match="some-batch has 0 bytes"):
        datasets.parse_cifar_batch(b"", "some-batch")


def test_damaged_cifar10_is_named(small_cifar, tmp_path):
    files, _, _ = small_cifar
    path = tmp_path / "cifar-10-binary.tar.gz"

    def message():
        with pytest.raises(InputError) as error:
            datasets.load("cifar10", tmp_path)
        return str(error.value)

    write_archive(path, {**files, "data_batch_2.bin": files["data_batch_3.bin"]})
    assert message().startswith(f"data_batch_2.bin in {path} does not have the published contents")
    write_archive(path, {**files, "data_batch_2.bin": files["data_batch_2.bin"][:-1]})
    assert message().startswith(f"data_batch_2.bin in {path} has 6145 bytes")
    write_archive(path, {name: contents for name, contents in files.items() if name != "test_batch.bin"})
    assert message().startswith(f"{path} lacks test_batch.bin")
    write_archive(path, files)
    path.write_bytes(path.read_bytes()[:-2000])
    assert message().startswith(f"{path} is corrupt")
    path.write_bytes(b"junk")
    assert message().startswith(f"{path} is corrupt")


@pytest.fixture
def small_cifar100(tmp_path, monkeypatch):
    """An archive of CIFAR-100's form with 3 + 2 images, whose checksum is taken for the published one."""
    generator = np.random.default_rng(2)
    images = generator.integers(0, 256, (5, 32, 32, 3), np.uint8)
    coarse, fine = [0, 19, 3, 7, 1], [99, 0, 42, 41, 7]
    records = [bytes([c]) + cifar_record(f, image) for c, f, image in zip(coarse, fine, images, strict=True)]
    path = tmp_path / "cifar-100-binary.tar.gz"
    write_archive(path, {"train.bin": b"".join(records[:3]), "test.bin": b"".join(records[3:])}, "cifar-100-binary")
    publish(monkeypatch, "_CIFAR100", path)
    return path, images, fine


@pytest.fixture
def small_tiny_imagenet(tmp_path, monkeypatch):
    """An archive of Tiny-ImageNet's form: two classes of two images, one of them grey, and three images for validation."""
    generator = np.random.default_rng(3)
    colours = generator.integers(0, 256, (7, 3), np.uint8)
    colours[1] = colours[1, 0]  # the grey one

    def jpeg(k):
        flat = np.broadcast_to(colours[k], (64, 64, 3))
        file = io.BytesIO()
        (Image.fromarray(flat[..., 0], "L") if k == 1 else Image.fromarray(np.ascontiguousarray(flat))).save(
            file, "JPEG", quality=95
        )
        return file.getvalue()

    path = tmp_path / "tiny-imagenet" / "tiny-imagenet-200.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        root = "tiny-imagenet-200"
        archive.writestr(f"{root}/wnids.txt", "n02\nn01\n")
        archive.writestr(f"{root}/words.txt", "n01\tgoldfish\n")
        archive.writestr(f"{root}/train/n02/images/", "")
        for k, name in enumerate(("n01/images/n01_0", "n01/images/n01_1", "n02/images/n02_0", "n02/images/n02_1")):
            archive.writestr(f"{root}/train/{name}.JPEG", jpeg(k))
        archive.writestr(f"{root}/train/n02/n02_boxes.txt", "n02_0.JPEG\t0\t0\t63\t63\n")
        for k in range(3):
            archive.writestr(f"{root}/val/images/val_{k}.JPEG", jpeg(4 + k))
        kinds = ("n02", "n01", "n02")
        archive.writestr(
            f"{root}/val/val_annotations.txt", "".join(f"val_{k}.JPEG\t{kinds[k]}\t0\t0\t9\t9\n" for k in (2, 0, 1))
        )
        archive.writestr(f"{root}/test/images/test_0.JPEG", jpeg(0))  # without a label: not read
    publish(monkeypatch, "_TINY_IMAGENET", path)
    return path, colours


def publish(monkeypatch, name, path):
    """Take the checksum of an archive for the published one."""
    url, _ = getattr(datasets, name)
    monkeypatch.setattr(datasets, name, (url, hashlib.md5(path.read_bytes()).hexdigest()))


@pytest.mark.parametrize("name", ["cifar100", "cifar-100"])
@pytest.mark.parametrize("parent", ["", "cifar100", "cifar-100"])
def test_cifar100_has_the_fine_labels(small_cifar100, name, parent):
    path, images, fine = small_cifar100
    if parent:
        (path.parent / parent).mkdir()
        path.rename(path.parent / parent / path.name)
    data = datasets.load(name, path.parent)
    assert (data.name, data.classes) == ("cifar100", 100)
    assert np.array_equal(np.rint(data.train["inputs"] * 255), images[:3])
    assert np.array_equal(np.rint(data.test["inputs"] * 255), images[3:])
    assert data.train["labels"].dtype == np.int32
    assert [*data.train["labels"], *data.test["labels"]] == fine


@pytest.mark.parametrize("name", ["tiny_imagenet", "tiny-imagenet"])
def test_tiny_imagenet_numbers_classes_by_the_alphabet_and_tests_on_what_is_for_validation(small_tiny_imagenet, name):
    path, colours = small_tiny_imagenet
    data = datasets.load(name, path.parent.parent)
    assert (data.name, data.classes) == ("tiny_imagenet", 2)
    assert data.train["inputs"].shape == (4, 64, 64, 3)
    assert data.train["inputs"].dtype == np.float32
    assert list(data.train["labels"]) == [0, 0, 1, 1]
    assert list(data.test["labels"]) == [1, 1, 0]  # as the annotations list them: 2, 0, 1
    seen = 255 * np.concatenate([data.train["inputs"], data.test["inputs"]])
    assert np.abs(seen - colours[[0, 1, 2, 3, 6, 4, 5]][:, None, None]).max() <= 3  # JPEG is not exact


def test_damaged_archives_are_named(small_cifar100, small_tiny_imagenet, monkeypatch):
    (cifar, _, _), (tiny, _) = small_cifar100, small_tiny_imagenet
    for name, path, checksum in (("cifar100", cifar, "_CIFAR100"), ("tiny_imagenet", tiny, "_TINY_IMAGENET")):
        path.write_bytes(path.read_bytes()[:-30])
        assert refusal(name, cifar.parent).startswith(f"{path} does not have the published contents")
        publish(monkeypatch, checksum, path)
        assert refusal(name, cifar.parent).startswith(f"{path} is corrupt")
    write_archive(cifar, {"train.bin": bytes(3073), "test.bin": bytes(3074)}, "cifar-100-binary")
    publish(monkeypatch, "_CIFAR100", cifar)
    assert refusal("cifar100", cifar.parent).startswith(f"train.bin in {cifar} has 3073 bytes")
    with zipfile.ZipFile(tiny, "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "n01\n")
    publish(monkeypatch, "_TINY_IMAGENET", tiny)
    assert refusal("tiny_imagenet", cifar.parent).startswith(f"{tiny} is corrupt (KeyError)")


def features(**changes):
    """The arrays of a file of features of 6 + 4 examples in 3 classes, some of them changed, or left out where None."""
    generator = np.random.default_rng(2)
    arrays = {
        "x_train": generator.normal(size=(6, 5)),
        "y_train": np.array([0, 1, 2, 2, 1, 0]),
        "x_test": generator.normal(size=(4, 5)),
        "y_test": np.array([2, 0, 0, 1]),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def write_features(path, **changes):
    np.savez(path, **features(**changes))
    return path


def refusal(name, folder=None):
    """The sentence with which a data set is refused."""
    with pytest.raises(InputError) as error:
        datasets.load(name, folder)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    return str(error.value)


@pytest.mark.parametrize(("kind", "label"), [(np.float16, np.uint8), (np.float32, np.int32), (np.float64, np.int64)])
def test_features_of_every_precision(tmp_path, kind, label):
    arrays = {name: array.astype(kind if name[0] == "x" else label) for name, array in features().items()}
    data = datasets.load(write_features(tmp_path / "some-network.npz", **arrays))
    assert data.name == "some-network"
    assert data.classes == 3
    for part, name in ((data.train, "train"), (data.test, "test")):
        assert part["inputs"].dtype == np.float32
        assert part["labels"].dtype == np.int32
        assert np.array_equal(part["inputs"], arrays[f"x_{name}"].astype(np.float32))
        assert np.array_equal(part["labels"], arrays[f"y_{name}"])


def test_features_by_path_or_by_name_in_the_folder(tmp_path, monkeypatch):
    data, here = tmp_path / "data", tmp_path / "here"
    data.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("FEDMINIMAX_DATA", str(data))
    write_features(data / "a.npz", x_train=np.full((6, 5), 1.0))
    assert datasets.load("a.npz").train["inputs"].max() == 1
    write_features(here / "a.npz", x_train=np.full((6, 5), 2.0))
    assert datasets.load("a.npz").train["inputs"].max() == 2  # an existing path goes first
    assert datasets.load(str(data / "a.npz")).train["inputs"].max() == 1
    write_features(data / "cifar10-features.npz", x_train=np.full((6, 5), 3.0))
    for name in ("cifar10_features", "cifar10-features", "cifar10-features.npz"):
        assert datasets.load(name).name == "cifar10-features"
        assert datasets.load(name).train["inputs"].max() == 3


def test_missing_file_of_features_is_named(tmp_path):
    for name, path in [("b.npz", tmp_path / "b.npz"), ("cifar10_features", tmp_path / "cifar10-features.npz")]:
        assert refusal(name, tmp_path).startswith(f"There is no file {path}: give the path")
    (tmp_path / "c.npz").mkdir()
    assert refusal(tmp_path / "c.npz").startswith("There is no file")


def test_damaged_file_of_features_is_named(tmp_path):
    path = write_features(tmp_path / "a.npz")
    contents = path.read_bytes()
    altered = bytearray(contents)
    altered[200] ^= 255  # within x_train: its checksum tells
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    for damaged in (b"", b"junk", contents[:100], contents[:-1], bytes(altered), single.getvalue()):
        path.write_bytes(damaged)
        assert refusal(path).startswith(f"{path} is not an .npz file of plain arrays, or is damaged (")


def test_pickled_objects_are_never_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    path = write_features(tmp_path / "a.npz", x_train=np.array([Trap()], object))
    assert "not an .npz file of plain arrays" in refusal(path)
    path.write_bytes(pickle.dumps(Trap()))
    assert "not an .npz file of plain arrays" in refusal(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None, "y_test": None, "more": np.zeros(2)}, "lacks x_test, y_test and has x_train, y_train, more"),
        ({"y_train": np.zeros(5, int)}, "has 6 rows of x_train and 5 of y_train"),
        ({"y_test": np.zeros(0, int)}, "has 4 rows of x_test and 0 of y_test"),
        ({"x_test": np.zeros((4, 3))}, "has x_train of 5 features and x_test of 3"),
        ({"x_train": np.zeros((6, 2, 2))}, "has x_train of shape (6, 2, 2) and dtype float64"),
        ({"x_train": np.zeros((6, 5), int)}, "has x_train of shape (6, 5) and dtype int64"),
        ({"x_train": np.zeros((0, 5)), "y_train": np.zeros(0, int)}, "has x_train of shape (0, 5)"),
        ({"x_train": np.zeros((6, 0))}, "has x_train of shape (6, 0)"),
        ({"x_train": np.array([[0.0]] * 4 + [[np.nan], [0]])}, "x_train that are not finite float32 numbers, first in row 4"),
        ({"x_test": np.array([[0.0], [np.inf], [0], [0]])}, "x_test that are not finite float32 numbers, first in row 1"),
        ({"x_test": np.array([[0.0], [0], [1e300], [0]])}, "x_test that are not finite float32 numbers, first in row 2"),
        ({"y_train": np.array([0, 1, 2, 2, 1, 0.5])}, "has y_train that are not whole numbers from 0"),
        ({"y_test": np.array([0, 1, -1, 2])}, "has y_test that are not whole numbers from 0"),
        ({"y_test": np.array([0, 1, 2**32, 2])}, "has y_test that are not whole numbers from 0"),
        ({"y_test": np.eye(4, dtype=int)}, "has y_test that are not whole numbers from 0"),
        ({"y_test": np.array([0, 1, 3, 2])}, "has class 3 in y_test and not in y_train"),
        ({"y_train": np.array([1, 2, 3, 3, 2, 1]), "y_test": np.array([1, 2, 3, 1])}, "has class 3 and not class 0 in y_train"),
    ],
)
def test_wrong_features_are_named(tmp_path, changes, message):
    path = write_features(tmp_path / "a.npz", **changes)
    assert refusal(path).startswith(f"{path} ")
    assert message in refusal(path)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError) as error:
        datasets.load("imagenet")
    assert str(error.value) == (
        "There is no data set 'imagenet': choose one of digits, mnist, fashion_mnist, cifar10, cifar100, tiny_imagenet, "
        "cifar10_features, or give an .npz file of features."
    )


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_first_line_of_docstring_describes(name):
    first = inspect.getdoc(datasets.DATASETS[name]).splitlines()[0]
    assert f"{ {'cifar100': 100, 'tiny_imagenet': 200}.get(name, 10) } classes" in first
    assert first.endswith(".")


def real(name, *files):
    """The name as a parameter, skipped unless one of the files is at hand."""
    missing = not any((REAL / file).exists() for file in files)
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"no {name} in the folder FEDMINIMAX_DATA"))


@pytest.mark.parametrize(
    "name", [real("mnist", f"mnist/{IDX_NAMES[0]}"), real("fashion_mnist", f"fashion-mnist/{IDX_NAMES[0]}")]
)
def test_real_idx_files(name):
    data = datasets.load(name, REAL)
    assert data.train["inputs"].shape == (60_000, 28, 28, 1)
    assert data.test["inputs"].shape == (10_000, 28, 28, 1)
    assert data.train["inputs"].max() == 1
    means = {"mnist": 0.1307, "fashion_mnist": 0.2860}  # the means that everyone normalises with
    assert data.train["inputs"].mean(dtype=float) == pytest.approx(means[name], abs=1e-4)
    assert np.array_equal(np.unique(data.train["labels"]), np.arange(10))


@pytest.mark.parametrize("name", [real("cifar10", "cifar-10-binary.tar.gz", "cifar10/cifar-10-binary.tar.gz")])
def test_real_cifar10(name):
    data = datasets.load(name, REAL)
    assert np.array_equal(np.bincount(data.train["labels"]), np.full(10, 5000))
    assert np.array_equal(np.bincount(data.test["labels"]), np.full(10, 1000))
    means = data.train["inputs"].mean(axis=(0, 1, 2), dtype=float)
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)  # red, green, blue: the planes are in order


@pytest.mark.parametrize("name", [real("cifar10_features", "cifar10-features.npz")])
def test_real_cifar10_features(name):
    data = datasets.load(name, REAL)
    assert data.name == "cifar10-features"
    assert np.array_equal(np.bincount(data.train["labels"]), np.full(10, 5000))
    assert np.array_equal(np.bincount(data.test["labels"]), np.full(10, 1000))
    # centred on the training part, and uncorrelated since they are principal components
    some = data.train["inputs"][:, :16].astype(float)
    assert np.abs(some.mean(axis=0)).max() < 1e-3
    assert np.abs(np.corrcoef(some.T) - np.eye(16)).max() < 1e-2
    # they tell the classes apart: even the nearest class mean is right far more often than 1 in 10 times
    means = np.stack([data.train["inputs"][data.train["labels"] == c].mean(axis=0) for c in range(10)])
    guess = np.argmax(data.test["inputs"] @ means.T - 0.5 * np.sum(means**2, axis=1), axis=1)
    assert np.mean(guess == data.test["labels"]) > 0.6


def test_smaller_images_are_means_over_squares():
    images = np.arange(2 * 6 * 6, dtype=np.float32).reshape(2, 6, 6, 1)
    halves = datasets.resized(images, 3)
    assert halves.shape == (2, 3, 3, 1)
    assert halves.dtype == np.float32
    assert halves[1, 2, 0, 0] == images[1, 4:6, 0:2, 0].mean()
    np.testing.assert_array_equal(datasets.resized(images, 6), images)
    bordered = datasets.resized(images, 4)  # squares of 2 after a border of one
    assert bordered[0, 0, 0, 0] == images[0, 0, 0, 0] / 4
    assert bordered[0, 1, 1, 0] == images[0, 1:3, 1:3, 0].mean()
    with pytest.raises(InputError, match="size is 7, but the inputs are"):
        datasets.resized(images, 7)
