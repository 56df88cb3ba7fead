"""A GAN that learns digits from 500 clients of one digit each, without seeing anybody's images.

    python examples/federated_gan.py --rounds 300 --out digits.png

Needs MNIST's files (`FEDMINIMAX_DATA`) or a network to fetch them from. It took about a quarter of an hour of
one core.
"""

import argparse

import jax
import numpy as np

import fedminimax as fm
from fedminimax import plots
from fedminimax.data import datasets, partition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist", choices=("mnist", "fashion_mnist"))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=2000, help="to judge the generator by")
    parser.add_argument("--features", type=int, default=16, help="of the networks; 64 in the DCGAN paper")
    parser.add_argument("--out", default="digits.png")
    options = parser.parse_args()

    images = datasets.load(options.data)
    inputs = 2 * images.train["inputs"] - 1
    owner = partition.by_class(images.train["labels"], options.clients)
    clients = fm.ClientData.from_owner({"inputs": inputs}, owner, batching="epochs")
    generator, discriminator = (
        network(features=options.features) for network in (fm.models.DCGANGenerator, fm.models.DCGANDiscriminator)
    )
    problem = fm.problems.gan(generator, discriminator, clients, saturating=False)
    method = fm.CDMAGE(0.1, 0.03, local_steps=options.local_steps, batch_size=30, cohort_size=5)
    judge = fm.metrics.InceptionScore(fm.metrics.train_classifier(options.data, epochs=3), samples=options.samples)
    result = fm.run(problem, clients, method, rounds=options.rounds, eval_every=100, metrics=judge, progress="inception/score")
    final = result.final()
    print(f"Inception score {final['inception/score']:.2f}, by a classifier of {final['inception/classifier_accuracy']:.1%}")
    pictures = problem.generate(result.x, jax.random.key(0), 100)
    plots.sample_grid(np.asarray(pictures), path=options.out)
    print(f"Figure: {options.out}")


if __name__ == "__main__":
    main()
