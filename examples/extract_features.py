"""Features of a data set's images from a frozen network, as a file that `fedminimax.data.datasets.load` reads.

    python examples/extract_features.py --data cifar10 --backbone mobilenet_v3_small --size 96 --pca 256 --out features.npz

A pretrained network needs torch and torchvision (its weights are downloaded, or read from --weights FILE). To try it with
neither, `--backbone random` is a convolutional network with fixed random weights.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeClassifier

import fedminimax as fm
from fedminimax.data import datasets

Backbone = Callable[[np.ndarray], np.ndarray]
"""Images, NHWC, in; features, a row each, out."""
# What torchvision's networks were trained with.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_backbone(size: int) -> Backbone:
    """A convolutional network with random weights, the same in every run."""
    keys = jax.random.split(jax.random.key(0), 3)
    channels = ((3, 32), (32, 64), (64, 128))
    kernels = [jax.random.normal(k, (3, 3, *c)) * np.sqrt(2 / (9 * c[0])) for k, c in zip(keys, channels, strict=True)]

    @jax.jit
    def features(images: jax.Array) -> jax.Array:
        x = jax.image.resize(images, (len(images), size, size, images.shape[-1]), "linear")
        x = (x - jnp.asarray(MEAN)) / jnp.asarray(DEVIATION)  # grey images become three channels
        for kernel in kernels:
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        # Means over 4 x 4 parts, not over the whole image: without training, where something is tells most.
        return jax.image.resize(x, (len(x), 4, 4, x.shape[-1]), "linear").reshape(len(x), -1)

    return lambda images: np.asarray(features(images))


def torchvision_backbone(name: str, weights: Path | None, size: int) -> Backbone:
    """One of torchvision's networks."""
    try:
        import torch
    except ImportError:
        raise SystemExit(f"{name} needs torch: pip install torch torchvision, or try --backbone random.") from None
    model = pretrained(name, weights).eval().to("cuda" if torch.cuda.is_available() else "cpu")
    device = next(model.parameters()).device
    mean, deviation = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, DEVIATION))

    @torch.inference_mode()
    def features(images: np.ndarray) -> np.ndarray:
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).to(device)
        batch = torch.nn.functional.interpolate(batch, (size, size), mode="bilinear", align_corners=False, antialias=True)
        return model((batch.expand(-1, 3, -1, -1) - mean) / deviation).flatten(1).float().cpu().numpy()

    return features


def pretrained(name: str, weights: Path | None) -> Any:
    """One of torchvision's networks without its last layers, which tell ImageNet's classes apart."""
    import torch

    offline = "or try --backbone random, which needs neither"
    try:
        import torchvision
    except ImportError:
        raise SystemExit(f"{name} is a network of torchvision: pip install torchvision, {offline}.") from None
    try:
        model = torchvision.models.get_model(name, weights=None if weights else "DEFAULT")
    except ValueError:
        known = ", ".join(torchvision.models.list_models(module=torchvision.models))
        raise SystemExit(f"torchvision has no network {name!r}: choose random or one of {known}.") from None
    except (OSError, RuntimeError) as error:  # no network; a download that is cut short
        reason = type(error).__name__
        raise SystemExit(
            f"The weights of {name} could not be downloaded ({reason}): give a file with --weights FILE, {offline}."
        ) from None
    if weights:
        try:
            model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        except Exception as error:  # torch raises all sorts for a file that is not one of weights
            raise SystemExit(
                f"{weights} does not have the weights of {name} ({type(error).__name__}): give its state dict."
            ) from None
    heads = [head for head in ("fc", "classifier", "heads", "head") if hasattr(model, head)]
    if not heads:
        raise SystemExit(f"{name} has no last layer by a usual name: choose another network, such as resnet18.")
    setattr(model, heads[0], torch.nn.Identity())
    return model


def as_images(data: str, inputs: np.ndarray) -> np.ndarray:
    """Return the inputs as NHWC images; those of digits come flat."""
    if data == "digits":
        return inputs.reshape(-1, 8, 8, 1)
    if inputs.ndim != 4:
        raise SystemExit(f"--data is {data}, whose inputs are not images: choose another data set.")
    return inputs


def reduce(train: np.ndarray, test: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Centre both parts and keep the principal components, all by the training part alone."""
    if components == 0:
        return train - train.mean(axis=0), test - train.mean(axis=0)
    pca = PCA(components, random_state=0).fit(train)
    return pca.transform(train), pca.transform(test)


def save(path: Path, arrays: dict[str, Any]) -> datasets.Dataset:
    """Write the file, read it again, and only then give it its name: a crash leaves an older file as it was."""
    part = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)
        data = datasets.load(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cifar10", help="a data set of images (default: cifar10)")
    parser.add_argument("--out", type=Path, default=Path("features.npz"), help="the file to write (default: features.npz)")
    parser.add_argument("--backbone", default="mobilenet_v3_small", help="a network of torchvision, or random")
    parser.add_argument("--weights", type=Path, help="a file with the network's weights, instead of the download")
    parser.add_argument("--size", type=int, default=96, help="height and width to resize to (default: 96)")
    parser.add_argument("--pca", type=int, default=256, help="number of principal components, 0 for all features")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--limit", type=int, help="use so many training and test images at most, chosen at random")
    options = parser.parse_args()
    for name, least in (("size", 8), ("pca", 0), ("batch_size", 1), ("limit", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} is {value}: give at least {least}")
    # What can be wrong is wrong now, not after an hour.
    if options.out.suffix != ".npz" or not options.out.absolute().parent.is_dir():
        parser.error(f"--out is {options.out}: give a file that ends in .npz, in a folder that exists")
    if options.weights and (options.backbone == "random" or not options.weights.is_file()):
        parser.error(f"--weights is {options.weights}: give an existing file of the weights of a network of torchvision")

    random = options.backbone == "random"
    backbone = (
        random_backbone(options.size) if random else torchvision_backbone(options.backbone, options.weights, options.size)
    )
    try:
        data = datasets.load(options.data)
    except fm.InputError as error:
        raise SystemExit(str(error)) from None
    pixels, labels, features = {}, {}, {}
    for name, part in (("train", data.train), ("test", data.test)):
        chosen = np.sort(np.random.default_rng(0).permutation(len(part["labels"]))[: options.limit])
        pixels[name], labels[name] = as_images(options.data, part["inputs"])[chosen], part["labels"][chosen]
    try:
        width = backbone(pixels["train"][:1]).shape[1]
    except (RuntimeError, AssertionError):
        raise SystemExit(f"{options.backbone} does not take images of {options.size} pixels: try --size 224.") from None
    most = min(width, len(pixels["train"]))
    if options.pca > most:
        raise SystemExit(
            f"--pca is {options.pca}, and {len(pixels['train'])} images of {width} features have {most}: lower it."
        )
    for name, images in pixels.items():
        batches = [images[i : i + options.batch_size] for i in range(0, len(images), options.batch_size)]
        rows = [backbone(batch) for batch in track(batches, f"{name}: {len(images)} images")]
        features[name] = np.concatenate(rows)
    x_train, x_test = (x.astype(np.float16) for x in reduce(features["train"], features["test"], options.pca))
    arrays = {"x_train": x_train, "y_train": labels["train"], "x_test": x_test, "y_test": labels["test"]}
    try:
        saved = save(options.out, arrays)
    except fm.InputError as error:
        raise SystemExit(f"These features are not a data set: {error}") from None

    judge = RidgeClassifier().fit(saved.train["inputs"], saved.train["labels"])
    accuracy = judge.score(saved.test["inputs"], saved.test["labels"])
    print(f"{options.out}: {len(x_train)} + {len(x_test)} vectors of {x_train.shape[1]} features in {saved.classes} classes")
    print(f"A ridge classifier on them is right for {accuracy:.1%} of the test images.")


if __name__ == "__main__":
    main()
