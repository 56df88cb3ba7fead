"""The data sets that the papers train on, from their official files, and feature vectors of any data set.

:func:`load` reads a data set from a folder, and downloads what is not there from the official place. Whatever its origin,
each file's contents must have the checksum of the published ones. Features, such as what a frozen network makes of the
images, are read from an ``.npz`` file of the user's own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedminimax.errors import InputError

FOLDER_VARIABLE = "FEDMINIMAX_DATA"
"""The environment variable that names the folder of data sets."""

Arrays = dict[str, npt.NDArray[Any]]
"""The examples: "inputs", float32, and "labels", int32 from 0, with equally many entries."""


@dataclass(frozen=True)
class Dataset:
    """A classification data set.

    Attributes:
        name: its name, a key of :data:`DATASETS`, or the name of the file of features without ``.npz``.
        train: the examples to train on: {"inputs": float32, in [0, 1] unless they are features, "labels": int32}.
        test: the examples to test on, likewise.
        classes: number of classes; labels run from 0 to classes - 1.
    """

    name: str
    train: Arrays
    test: Arrays
    classes: int


def folder_of(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of data sets: the one that is given, that the environment names, or the user's cache."""
    from platformdirs import user_cache_dir

    return Path(given or os.environ.get(FOLDER_VARIABLE) or user_cache_dir("fedminimax"))


def load(name: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Return a data set by name.

    A name that ends in ``.npz`` is a file of features: arrays ``x_train`` and ``x_test``, one float vector (of 16, 32 or 64
    bits) a row, and ``y_train`` and ``y_test``, the classes as integers from 0. ``examples/extract_features.py`` makes such
    a file of images with a pretrained network, :func:`~fedminimax.problems.linearize.tangent_features` makes the features
    of any network, and ``numpy.savez`` writes them.

    Args:
        name: "digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet" or "cifar10_features";
            "fashion-mnist", "cifar-10", "cifar-100", "tiny-imagenet" and "cifar10-features" will do too. Or a file of
            features: its path, or its name in the folder.
        folder: where the official files are, and where they are put when they have to be downloaded: ``mnist/`` and
            ``fashion-mnist/`` in it hold the gzipped IDX files, and it, ``cifar10/`` or ``cifar-10/`` in it holds
            ``cifar-10-binary.tar.gz`` or the directory ``cifar-10-batches-bin`` that this unpacks to. It, or a folder of
            the set's name, holds ``cifar-100-binary.tar.gz`` and ``tiny-imagenet-200.zip``, which are not unpacked. Files
            of features are in it and are never downloaded; that of "cifar10_features" is ``cifar10-features.npz``. By
            default the folder that the environment variable FEDMINIMAX_DATA names, and otherwise the user's cache.

    Returns:
        The data set. Images are NHWC; the inputs of "digits" are flat, 64 features, and so are those of a file of features.
    """
    name = os.fspath(name)
    folder = folder_of(folder)
    if name.endswith(".npz"):
        path = Path(name).expanduser()
        return read_features(path if path.is_absolute() or path.exists() else folder / path)
    aliases = {"cifar-10": "cifar10", "cifar-100": "cifar100"}
    key = aliases.get(name, name.replace("-", "_"))
    if key not in DATASETS:
        raise InputError(
            f"There is no data set {name!r}: choose one of {', '.join(DATASETS)}, or give an .npz file of features."
        )
    return DATASETS[key](folder)


def digits(folder: Path) -> Dataset:
    """Handwritten digits of 8x8 pixels, 1,797 in 10 classes; comes with scikit-learn, needs no file."""
    from sklearn.datasets import load_digits  # a second of importing that only this needs

    pixels, labels = load_digits(return_X_y=True)
    # Of every class, each fifth example is for testing: stratified, and the same with every version of every library.
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[4::5]] = True
    inputs, labels = (pixels / 16).astype(np.float32), labels.astype(np.int32)
    return Dataset(
        "digits",
        train={"inputs": inputs[~test], "labels": labels[~test]},
        test={"inputs": inputs[test], "labels": labels[test]},
        classes=10,
    )


def mnist(folder: Path) -> Dataset:
    """MNIST: handwritten digits, 60,000 + 10,000 grey images of 28x28 pixels in 10 classes."""
    return _idx_dataset("mnist", folder / "mnist", "https://storage.googleapis.com/cvdf-datasets/mnist/", _MNIST)


def fashion_mnist(folder: Path) -> Dataset:
    """Fashion-MNIST: pieces of clothing, 60,000 + 10,000 grey images of 28x28 pixels in 10 classes."""
    site = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    return _idx_dataset("fashion_mnist", folder / "fashion-mnist", site, _FASHION_MNIST)


def cifar10(folder: Path) -> Dataset:
    """CIFAR-10: animals and vehicles, 50,000 + 10,000 colour images of 32x32 pixels in 10 classes."""
    source = _cifar_source(folder)
    parts = []
    for name, contents in read_cifar_batches(source, list(_CIFAR10)).items():
        parts.append(parse_cifar_batch(contents, f"{name} in {source}"))
        check_sum(f"{name} in {source}", contents, _CIFAR10[name])
    images, labels = zip(*parts, strict=True)
    return Dataset(
        "cifar10",
        train={"inputs": _scaled(np.concatenate(images[:-1])), "labels": np.concatenate(labels[:-1]).astype(np.int32)},
        test={"inputs": _scaled(images[-1]), "labels": labels[-1].astype(np.int32)},
        classes=10,
    )


def cifar100(folder: Path) -> Dataset:
    """CIFAR-100: all sorts of things, 50,000 + 10,000 colour images of 32x32 pixels in 100 classes."""
    source = _archive(folder, "cifar100", *_CIFAR100)
    parts = {}
    for name, contents in read_cifar_batches(source, ["train.bin", "test.bin"]).items():
        images, labels = parse_cifar_batch(contents, f"{name} in {source}", label_bytes=2)
        parts[name] = {"inputs": _scaled(images), "labels": labels.astype(np.int32)}
    return Dataset("cifar100", parts["train.bin"], parts["test.bin"], classes=100)


def tiny_imagenet(folder: Path) -> Dataset:
    """Tiny-ImageNet: 100,000 + 10,000 colour images of 64x64 pixels in 200 classes; to test on are those for validation."""
    source = _archive(folder, "tiny_imagenet", *_TINY_IMAGENET)
    train, test, classes = read_tiny_imagenet(source)
    return Dataset("tiny_imagenet", train, test, classes)


def cifar10_features(folder: Path) -> Dataset:
    """Features of CIFAR-10's images, one vector each, in 10 classes; from cifar10-features.npz in the data folder."""
    return read_features(folder / "cifar10-features.npz")


def read_features(path: Path) -> Dataset:
    """Return the data set in an ``.npz`` file of features, as :func:`load` describes it."""
    if not path.is_file():
        raise InputError(
            f"There is no file {path}: give the path of a file of features (examples/extract_features.py makes one), or set "
            f"{FOLDER_VARIABLE} to the folder that has {path.name}."
        )
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        with file:
            there = list(file.files)
            arrays = {name: file[name] for name in names if name in there}
    # What zipfile and NumPy raise when it is another kind of file, is cut short, is altered, or holds pickled objects.
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is not an .npz file of plain arrays, or is damaged ({reason_of(error)}): write it again with numpy.savez."
        ) from error
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(missing)} and has {', '.join(there) or 'nothing'}: a file of features has the arrays "
            f"{', '.join(names)}."
        )
    train, test = (_feature_part(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    widths = train["inputs"].shape[1], test["inputs"].shape[1]
    if widths[0] != widths[1]:
        raise InputError(
            f"{path} has x_train of {widths[0]} features and x_test of {widths[1]}: make both with the same network."
        )
    known = np.unique(train["labels"])
    unknown = np.setdiff1d(test["labels"], known)
    if len(unknown):
        raise InputError(f"{path} has class {unknown[0]} in y_test and not in y_train: leave it out, or train on it too.")
    classes = int(known[-1]) + 1
    if len(known) < classes:
        first = int(np.argmax(known != np.arange(len(known))))
        raise InputError(
            f"{path} has class {classes - 1} and not class {first} in y_train: number the classes from 0 without gaps."
        )
    return Dataset(path.stem, train, test, classes)


def parse_idx(contents: bytes, name: str) -> npt.NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes.

    The file is: two zero bytes, the type (8 is unsigned byte), the number of axes, the length of each axis as a big-endian
    32-bit integer, and the entries, last axis fastest.

    Args:
        contents: the file, decompressed.
        name: the file's name, for the message when it is not such a file.
    """
    axes = contents[3] if len(contents) > 3 else 0
    start = 4 + 4 * axes
    if contents[:3] != b"\x00\x00\x08" or axes == 0 or len(contents) < start:
        raise InputError(f"{name} is not an IDX file of unsigned bytes: remove it, and it is downloaded again.")
    shape = tuple(int(n) for n in np.frombuffer(contents, ">u4", count=axes, offset=4))
    size = math.prod(shape)  # of Python's integers, which do not overflow whatever a corrupt header says
    if len(contents) != start + size:
        raise InputError(
            f"{name} announces {size} entries, {shape}, and has {len(contents) - start}: remove it, and it is downloaded again."
        )
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape)


def parse_cifar_batch(contents: bytes, name: str, label_bytes: int = 1) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the images, NHWC, and the labels in a file of the binary version of CIFAR-10 or CIFAR-100.

    The file is a sequence of records: the label, then the red, the green and the blue plane of 32 rows. A record of CIFAR-100
    has two labels, of which the second, the fine one, is returned.

    Args:
        contents: the file.
        name: the file's name, for the message when it is not such a file.
        label_bytes: how many labels a record has.
    """
    length = label_bytes + 3072
    if len(contents) == 0 or len(contents) % length:
        raise InputError(
            f"{name} has {len(contents)} bytes, which is not a whole number of records of {length:,} bytes: remove the "
            "archive, and it is downloaded again."
        )
    records = np.frombuffer(contents, np.uint8).reshape(-1, length)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, label_bytes - 1]


def read_tiny_imagenet(source: Path) -> tuple[Arrays, Arrays, int]:
    """Return the training and the validation examples, and the number of classes, of the archive ``tiny-imagenet-200.zip``.

    ``wnids.txt`` lists the classes, which are numbered by the alphabet; ``train/<class>/images`` has the images of one, and
    ``val/val_annotations.txt`` the name and the class of every image in ``val/images``. All are JPEG files, some of them grey.
    Nothing is unpacked to disk.
    """
    from PIL import Image  # matplotlib brings it

    try:
        with zipfile.ZipFile(source) as archive:
            root = "tiny-imagenet-200/"
            lines = lambda name: archive.read(root + name).decode().splitlines()
            number = {name: k for k, name in enumerate(sorted(lines("wnids.txt")))}
            train, test = [], []
            for name in sorted(archive.namelist()):
                parts = name.removeprefix(root).split("/")
                if len(parts) == 4 and parts[0] == "train" and parts[2] == "images" and parts[3]:
                    train.append((name, number[parts[1]]))
            for line in lines("val/val_annotations.txt"):
                image, kind = line.split("\t")[:2]
                test.append((f"{root}val/images/{image}", number[kind]))

            def read(files: list[tuple[str, int]]) -> Arrays:
                inputs = np.empty((len(files), 64, 64, 3), np.float32)
                for row, (name, _) in zip(inputs, files, strict=True):
                    with Image.open(io.BytesIO(archive.read(name))) as image:
                        row[:] = _scaled(np.asarray(image.convert("RGB")))
                return {"inputs": inputs, "labels": np.array([label for _, label in files], np.int32)}

            return read(train), read(test), len(number)
    # What zipfile and Pillow raise when it is another kind of file, or a part is missing or damaged.
    except (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{source} is corrupt ({reason_of(error)}): remove it, and it is downloaded again.") from error


def read_cifar_batches(source: Path, names: list[str]) -> dict[str, bytes]:
    """Return the named files of ``cifar-10-batches-bin``, or of another archive, given that directory or the archive.

    Nothing is unpacked to disk.
    """
    found: dict[str, bytes] = {}
    try:
        if source.is_dir():
            found = {path.name: path.read_bytes() for path in source.glob("*.bin")}
        else:
            with tarfile.open(source) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    if file is not None:
                        found[Path(member.name).name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        reason = reason_of(error)
        raise InputError(f"{source} is corrupt ({reason}): remove it, and the archive is downloaded again.") from error
    for name in names:
        if name not in found:
            raise InputError(f"{source} lacks {name}: remove it, and the archive is downloaded again.")
    return {name: found[name] for name in names}


def _idx_dataset(name: str, folder: Path, site: str, files: dict[str, tuple[str, str]]) -> Dataset:
    """Read the four IDX files of a data set, in the order in which ``files`` lists them."""
    arrays = []
    for file, (md5, sha256) in files.items():
        path = folder / file
        if not path.exists():
            download(site + file, path, md5)
        try:
            contents = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} is corrupt ({reason_of(error)}): remove it, and it is downloaded again.") from error
        array = parse_idx(contents, str(path))
        check_sum(str(path), contents, sha256)
        arrays.append(array)
    train_images, train_labels, test_images, test_labels = arrays
    return Dataset(
        name,
        train={"inputs": _scaled(train_images[..., None]), "labels": train_labels.astype(np.int32)},
        test={"inputs": _scaled(test_images[..., None]), "labels": test_labels.astype(np.int32)},
        classes=10,
    )


def _feature_part(path: Path, part: str, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Arrays:
    """Return the training or the test part of a file of features, or say what is wrong with it."""
    if features.ndim != 2 or features.dtype.kind != "f" or features.size == 0:
        raise InputError(
            f"{path} has x_{part} of shape {features.shape} and dtype {features.dtype}: give one float vector for each example."
        )
    # A bound as well: beyond it an int32 would turn negative.
    whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    if not whole or (len(labels) and (labels.min() < 0 or labels.max() > np.iinfo(np.int32).max)):
        raise InputError(
            f"{path} has y_{part} that are not whole numbers from 0: give the class of each example as an integer."
        )
    if len(features) != len(labels):
        raise InputError(
            f"{path} has {len(features)} rows of x_{part} and {len(labels)} of y_{part}: give one of both for each example."
        )
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which the next line tells
        inputs = features.astype(np.float32)
    if not np.isfinite(inputs).all():
        row = int(np.argmin(np.isfinite(inputs).all(axis=1)))
        raise InputError(
            f"{path} has x_{part} that are not finite float32 numbers, first in row {row}: mend or remove the rows."
        )
    return {"inputs": inputs, "labels": labels.astype(np.int32)}


def _cifar_source(folder: Path) -> Path:
    """Return where CIFAR-10 is: the unpacked directory or the archive, downloaded if there is neither."""
    archive = "cifar-10-binary.tar.gz"
    for parent in (folder, folder / "cifar10", folder / "cifar-10"):
        for path in (parent / "cifar-10-batches-bin", parent / archive):
            if path.exists():
                return path
    path = folder / "cifar10" / archive
    # The checksum that is printed beside the link on https://www.cs.toronto.edu/~kriz/cifar.html
    download(f"https://www.cs.toronto.edu/~kriz/{archive}", path, "c32a1d4ab5d03f1284b67883e8d87530")
    return path


def _archive(folder: Path, name: str, url: str, md5: str) -> Path:
    """Return the official archive of a data set, from the folder or downloaded; its own checksum is compared."""
    file = url.rpartition("/")[2]
    for parent in (folder, folder / name, folder / name.replace("_", "-"), folder / name.replace("cifar", "cifar-")):
        if (parent / file).is_file():
            path = parent / file
            with path.open("rb") as contents:
                if hashlib.file_digest(contents, "md5").hexdigest() != md5:
                    raise InputError(f"{path} does not have the published contents: remove it, and it is downloaded again.")
            return path
    path = folder / name / file
    download(url, path, md5)
    return path


def download(url: str, path: Path, md5: str) -> None:
    """Download a file whose md5 is known."""
    import pooch
    from rich.console import Console

    # A few seconds to connect: without network the user should hear about it now.
    downloader = pooch.HTTPDownloader(timeout=(5, 60))
    pooch.get_logger().setLevel("WARNING")  # the console says it instead, and only on a terminal
    try:
        with Console(stderr=True).status(f"Downloading {url}"):
            pooch.retrieve(url, f"md5:{md5}", fname=path.name, path=path.parent, downloader=downloader)
    except (OSError, ValueError) as error:  # network and disk; a checksum that differs
        raise InputError(
            f"{path.name} is not in {path.parent} and could not be downloaded from {url} ({reason_of(error)}): put the file "
            f"in that folder, or set {FOLDER_VARIABLE} to the folder of data sets that has {path.parent.name}/{path.name}."
        ) from error


def check_sum(name: str, contents: bytes, sha256: str) -> None:
    """Compare contents with the published ones."""
    if hashlib.sha256(contents).hexdigest() != sha256:
        raise InputError(f"{name} does not have the published contents: remove it, and it is downloaded again.")


def _scaled(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return bytes as float32 in [0, 1], in C order."""
    return np.divide(pixels, np.float32(255), dtype=np.float32, order="C")


def resized(images: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return smaller images: means over equal squares, after a border of zeros where they would not fit.

    Args:
        images: [n, height, width, channels], in [0, 1].
        size: the height and width to have.
    """
    if images.ndim != 4 or images.shape[1] != images.shape[2] or not 1 <= size <= images.shape[1]:
        raise InputError(
            f"size is {size}, but the inputs are {images.shape[1:]}: give one of at most their height, of square images."
        )
    count, side, _, channels = images.shape
    square = -(-side // size)
    border = square * size - side
    around = (border // 2, border - border // 2)
    padded = np.pad(images, ((0, 0), around, around, (0, 0)))
    return padded.reshape(count, size, square, size, square, channels).mean(axis=(2, 4), dtype=images.dtype)


def reason_of(error: Exception) -> str:
    """Return the kind of an error: library messages run over several lines."""
    return type(error).__name__


# In the order: training images, training labels, test images, test labels.
# md5 of the official .gz file, and sha256 of what it decompresses to, since the same contents are also found compressed
# otherwise.
_MNIST = {
    "train-images-idx3-ubyte.gz": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte.gz": (
        "d53e105ee54ea40749a09fcbcd1e9432",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "9fb629c4189551a2d022fa330f9573f3",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "ec29112dd5afa0611ce80d1b7f02629c",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
_FASHION_MNIST = {
    "train-images-idx3-ubyte.gz": (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte.gz": (
        "25c81989df183df01b3e8a0aad5dffbe",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "bef4ecab320f06d8554ea6380940ec79",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "bb300cfdad3c16e7a12a480ee83cd310",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}
# sha256 of each file in the archive; the last one is the test set.
_CIFAR10 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
# The archive and its md5; that of CIFAR-100 is printed beside the link on https://www.cs.toronto.edu/~kriz/cifar.html
_CIFAR100 = ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")
_TINY_IMAGENET = ("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")

DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "cifar10_features": cifar10_features,
}
"""The data sets by name: functions of the folder that has them."""
