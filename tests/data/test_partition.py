"""Every division: complete, of the promised sizes and shares, reproducible, and clear about wrong input."""

import inspect

import numpy as np
import pytest

from fedminimax.data import partition
from fedminimax.errors import InputError

LABELS = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 100))
UNEVEN = np.random.default_rng(8).permutation(np.repeat(np.arange(4), [7, 50, 113, 230]))

DIVISIONS = {
    "iid": lambda labels, clients, seed: partition.iid(labels, clients, seed),
    "dirichlet": lambda labels, clients, seed: partition.dirichlet(labels, clients, 0.3, seed),
    "by_class": lambda labels, clients, seed: partition.by_class(labels, clients, seed),
    "major_class": lambda labels, clients, seed: partition.major_class(labels, clients, 0.25, seed),
}


def counts(labels, owner, clients):
    """The number of examples of each class (columns) that each client (rows) holds."""
    table = np.zeros((clients, labels.max() + 1), int)
    np.add.at(table, (owner, labels), 1)
    return table


def test_table_of_divisions_is_the_registry():
    assert set(DIVISIONS) == set(partition.PARTITIONS)


@pytest.mark.parametrize("name", DIVISIONS)
def test_first_line_of_docstring_describes(name):
    first = inspect.getdoc(partition.PARTITIONS[name]).splitlines()[0]
    assert len(first) > 20
    assert first.endswith(".")


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("labels", [LABELS, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("clients", [1, 3, 37])
def test_every_example_has_an_owner_and_every_client_an_example(name, labels, clients):
    owner = DIVISIONS[name](labels, clients, 0)
    assert owner.dtype == np.int32
    assert owner.shape == labels.shape
    assert np.array_equal(np.unique(owner), np.arange(clients))


@pytest.mark.parametrize("name", DIVISIONS)
def test_seed_decides(name):
    division = DIVISIONS[name]
    assert np.array_equal(division(LABELS, 20, 3), division(LABELS, 20, 3))
    assert not np.array_equal(division(LABELS, 20, 3), division(LABELS, 20, 4))


@pytest.mark.parametrize("name", ["iid", "by_class", "major_class"])
@pytest.mark.parametrize("labels", [LABELS, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("clients", [1, 7, 10, 33])
def test_equal_sizes(name, labels, clients):
    sizes = np.bincount(DIVISIONS[name](labels, clients, 1))
    assert sizes.max() - sizes.min() <= 1


def test_iid_takes_a_number_and_mixes_the_classes():
    assert np.array_equal(partition.iid(1000, 10, 5), partition.iid(LABELS, 10, 5))
    table = counts(LABELS, partition.iid(LABELS, 10, 5), 10)
    assert table.min() >= 1
    assert table.max() <= 25  # 10 expected; 25 is 5 standard deviations above


def test_by_class_gives_one_class_each_when_it_divides():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))
    table = counts(labels, partition.by_class(labels, 500), 500)
    assert np.all((table > 0).sum(axis=1) == 1)
    assert np.array_equal((table > 0).sum(axis=0), np.full(10, 50))


def test_by_class_orders_clients_by_class_whatever_the_labels_are_called():
    assert np.array_equal(partition.by_class([30, -5, 30, -5], 2), [1, 0, 1, 0])


def test_dirichlet_small_alpha_is_less_alike_than_large_alpha():
    def largest_share(alpha):
        table = counts(LABELS, partition.dirichlet(LABELS, 10, alpha, seed=2), 10)
        return (table / table.sum(axis=1, keepdims=True)).max(axis=1).mean()

    assert largest_share(0.05) > 0.6
    assert largest_share(1000.0) < 0.2


def test_dirichlet_class_shares_are_the_drawn_proportions():
    # One class, min_size 0: the first draw stands, so the sizes must be its proportions, to rounding.
    labels = np.zeros(10_000, int)
    generator = np.random.default_rng(4)
    generator.permutation(len(labels))
    shares = generator.dirichlet(np.full(8, 0.5), size=1)[0]
    sizes = np.bincount(partition.dirichlet(labels, 8, 0.5, seed=4, min_size=0), minlength=8)
    assert np.abs(sizes - 10_000 * shares).max() <= 1


@pytest.mark.parametrize(
    ("clients", "alpha", "min_size"), [(50, 0.01, 1), (50, 0.01, 20), (100, 1e-6, 5), (1000, 0.1, 1), (999, 0.01, 1)]
)
def test_dirichlet_always_reaches_the_least_size(clients, alpha, min_size):
    owner = partition.dirichlet(LABELS, clients, alpha, seed=0, min_size=min_size)
    sizes = np.bincount(owner, minlength=clients)
    assert sizes.min() >= min_size
    assert sizes.sum() == len(LABELS)


def test_dirichlet_takes_from_the_largest_clients_only():
    owner = np.repeat(np.arange(4), [10, 2, 0, 6]).astype(np.int32)
    filled = partition._fill(owner.copy(), 4, 3, np.random.default_rng(0))
    assert np.array_equal(np.bincount(filled), [6, 3, 3, 6])
    assert np.array_equal(filled[10:12], [1, 1])
    assert np.array_equal(filled[12:], owner[12:])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_major_class_has_exactly_its_share_and_the_rest_is_even(share):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 2000))
    table = counts(labels, partition.major_class(labels, 20, share, seed=3), 20)
    others = np.ones((20, 10), bool)
    others[np.arange(20), np.arange(20) % 10] = False
    assert np.all(table[~others] == 1000 * share)
    expected = 1000 * (1 - share) / 9  # of each other class; no standard deviation is above the square root of this
    assert np.abs(table[others] - expected).max() <= 5 * np.sqrt(expected)


def test_major_class_takes_what_the_others_have_no_room_for():
    # 34, 33 and 33 places, 8 of each for the major class: clients 1 and 2 have room for 50 of the other 62 of class 0
    labels = np.repeat([0, 1, 2], [70, 20, 10])
    table = counts(labels, partition.major_class(labels, 3, 0.25, seed=0), 3)
    assert table.tolist() == [[20, 12, 2], [25, 8, 0], [25, 0, 8]]
    assert np.all(partition.major_class(labels, 1) == 0)


def test_major_class_shares_out_a_class_that_is_too_small():
    owner = partition.major_class(UNEVEN, 8, 1.0, seed=0)  # 50 each; class 0 has 7 examples for clients 0 and 4
    table = counts(UNEVEN, owner, 8)
    assert sorted(table[[0, 4], 0]) == [3, 4]
    assert table[[3, 7], 3].tolist() == [50, 50]
    assert np.array_equal(table.sum(axis=1), np.full(8, 50))


def test_major_class_with_fewer_clients_than_classes():
    table = counts(LABELS, partition.major_class(LABELS, 3, 0.25, seed=0), 3)
    assert np.all(np.argmax(table, axis=1) == [0, 1, 2])


def test_drop_examples_of_some_clients():
    owner = partition.iid(1000, 20, seed=1)
    dropped = partition.drop_examples(owner, 0.5, 0.8, seed=2)
    assert dropped.dtype == np.int32
    assert sorted(np.bincount(dropped[dropped >= 0])) == [10] * 10 + [50] * 10
    assert np.array_equal(dropped[dropped >= 0], owner[dropped >= 0])
    assert not np.array_equal(dropped, partition.drop_examples(owner, 0.5, 0.8, seed=3))


def test_drop_examples_leaves_one_and_keeps_what_was_removed_removed():
    owner = np.array([0, 0, 0, -1, 1, 2, 2, -1], np.int32)
    before = owner.copy()
    dropped = partition.drop_examples(owner, 1.0, 1.0)
    assert np.array_equal(owner, before)
    assert np.array_equal(np.bincount(dropped[dropped >= 0]), [1, 1, 1])
    assert np.all(dropped[[3, 7]] == -1)


def test_drop_examples_of_nobody_changes_nothing():
    owner = partition.iid(100, 5)
    assert np.array_equal(partition.drop_examples(owner, 0.0, 1.0), owner)
    assert np.array_equal(partition.drop_examples(owner, 1.0, 0.0), owner)


TRAIN = partition.dirichlet(LABELS, 12, 0.3, seed=6)
TEST = np.random.default_rng(9).permutation(np.repeat(np.arange(10), 57))


def test_own_distribution_shares_each_class_as_in_training():
    owner = partition.own_distribution(TRAIN, LABELS, TEST, 12, seed=1)
    assert owner.dtype == np.int32
    train, test = counts(LABELS, TRAIN, 12), counts(TEST, owner, 12)
    exact = 57 * train / train.sum(axis=0)
    assert np.all(test >= np.floor(exact))
    assert np.all(test <= np.ceil(exact))
    assert np.array_equal(test.sum(axis=0), np.full(10, 57))
    assert test.sum(axis=1).min() >= 1
    # largest remainders: in each class nobody who was rounded down had more left over than somebody rounded up
    for remainder, up in zip((exact % 1).T, (test - np.floor(exact)).T, strict=True):
        assert up.sum() == 0 or remainder[up == 1].min() >= remainder[up == 0].max() - 1e-9


def test_own_distribution_is_that_of_the_seed():
    # Two alike clients and an even number of tests: nothing is rounded, only the shuffle is left to the seed.
    owners = [partition.own_distribution([0, 1], [0, 0], np.zeros(100, int), 2, seed=seed) for seed in (3, 3, 4)]
    assert np.array_equal(owners[0], owners[1])
    assert not np.array_equal(owners[0], owners[2])
    assert all(np.bincount(owner).tolist() == [50, 50] for owner in owners)


def test_own_distribution_is_exact_when_it_divides():
    labels = np.repeat(np.arange(10), 500)
    owner = partition.own_distribution(partition.by_class(labels, 50), labels, np.repeat(np.arange(10), 100), 50)
    assert np.array_equal(counts(np.repeat(np.arange(10), 100), owner, 50)[:, 0], [20] * 5 + [0] * 45)
    assert np.array_equal(np.bincount(owner), np.full(50, 20))


def test_own_distribution_draws_equal_remainders_by_lot():
    # Nine alike clients, ten classes with one odd test example each: the odd ones must not all go to client 0.
    labels, train = np.tile(np.repeat(np.arange(10), 2), 9), np.repeat(np.arange(9), 20)
    owner = partition.own_distribution(train, labels, np.repeat(np.arange(10), 10), 9)
    sizes = np.bincount(owner, minlength=9)
    assert sizes.sum() == 100
    assert sizes.max() < 20


def test_own_distribution_leaves_nobody_without_the_class_it_has_most_of():
    # Client 0 has nearly everything; clients 1 to 4 have one example of class 1 each, which rounds to nothing.
    labels = np.array([0] * 501 + [1] * 499 + [1] * 4)
    train = np.array([0] * 1000 + [1, 2, 3, 4])
    owner = partition.own_distribution(train, labels, [0] * 10 + [1] * 6, 5)
    assert counts(np.array([0] * 10 + [1] * 6), owner, 5).tolist() == [[10, 2]] + [[0, 1]] * 4
    # As many test examples as clients that are entitled to one: the giver keeps none, for it has more of class 0.
    owner = partition.own_distribution(train, labels, [0] * 10 + [1] * 4, 5)
    assert counts(np.array([0] * 10 + [1] * 4), owner, 5).tolist() == [[10, 0]] + [[0, 1]] * 4


def test_own_distribution_never_takes_from_a_client_the_last_of_its_most_frequent_class():
    # Of class 1, clients 0 and 2 round to one test example each and client 1 to none; client 2 has more of class 0.
    labels = np.array([1] * 10 + [1] + [1] * 10 + [0] * 20)
    train = np.array([0] * 10 + [1] + [2] * 30)
    owner = partition.own_distribution(train, labels, [1, 1, 0, 0], 3)
    assert counts(np.array([1, 1, 0, 0]), owner, 3).tolist() == [[0, 1], [0, 1], [2, 0]]


def test_own_distribution_with_many_small_clients_gives_each_one_a_test():
    train = partition.dirichlet(LABELS, 200, 0.1, seed=0)
    owner = partition.own_distribution(train, LABELS, TEST, 200)
    table, test = counts(LABELS, train, 200), counts(TEST, owner, 200)
    assert np.all(test[np.arange(200), table.argmax(axis=1)] >= 1)
    assert np.all(table[test > 0] > 0)  # no class that the client does not have
    assert test.sum() == len(TEST)


def test_own_distribution_ignores_removed_examples():
    dropped = partition.drop_examples(TRAIN, 0.5, 0.8, seed=2)
    kept = dropped >= 0
    expected = partition.own_distribution(TRAIN[kept], LABELS[kept], TEST, 12)
    assert np.array_equal(partition.own_distribution(dropped, LABELS, TEST, 12), expected)
    # which is another division than before the removal
    assert not np.array_equal(partition.own_distribution(TRAIN, LABELS, TEST, 12), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.iid(10, 0), "clients is 0"),
        (lambda: partition.iid(10, 2.5), "clients is 2.5"),
        (lambda: partition.iid(10, 11), "11 clients cannot share 10 examples"),
        (lambda: partition.iid(0, 1), "n_or_labels is 0"),
        (lambda: partition.iid(10, 2, seed=-1), "seed is -1"),
        (lambda: partition.by_class([0.0, 1.0], 2), "labels has shape (2,) and dtype float64"),
        (lambda: partition.by_class([[0, 1]], 1), "labels has shape (1, 2)"),
        (lambda: partition.by_class([], 1), "labels has shape (0,)"),
        (lambda: partition.dirichlet(LABELS, 10, 0.0), "alpha is 0.0"),
        (lambda: partition.dirichlet(LABELS, 10, float("nan")), "alpha is nan"),
        (lambda: partition.dirichlet(LABELS, 10, float("inf")), "alpha is inf"),
        (lambda: partition.dirichlet(LABELS, 10, None), "alpha is None"),
        (lambda: partition.dirichlet(LABELS, 10, 1.0, min_size=101), "need 1010 examples and there are 1000"),
        (lambda: partition.dirichlet(LABELS, 10, 1.0, min_size=-1), "min_size is -1"),
        (lambda: partition.major_class(LABELS, 10, 1.5), "share is 1.5"),
        (lambda: partition.drop_examples([0, 1], -0.1, 0.5), "client_share is -0.1"),
        (lambda: partition.drop_examples([0, 1], 0.5, 2), "example_share is 2"),
        (lambda: partition.drop_examples([0, -2], 0.5, 0.5), "owner has the entry -2"),
        (lambda: partition.drop_examples([0.5], 0.5, 0.5), "owner has shape (1,) and dtype float64"),
        (lambda: partition.own_distribution([0, 1], [0, 0, 0], [0, 0], 2), "train_owner has 2 entries and train_labels 3"),
        (lambda: partition.own_distribution([0, 2], [0, 0], [0, 0], 2), "train_owner has the entry 2"),
        (lambda: partition.own_distribution([0, -2], [0, 0], [0, 0], 2), "train_owner has the entry -2"),
        (lambda: partition.own_distribution([0, -1], [0, 1], [0, 1], 1), "test_labels has class 1"),
        (lambda: partition.own_distribution([0, 2], [0, 0], [0, 0, 0], 3), "Client 1 holds no training example"),
        (
            lambda: partition.own_distribution([0, 1, 2], [0, 1, 1], [0, 0, 1], 3),
            "Class 1 is the most frequent one of 2 clients",
        ),
        (lambda: partition.own_distribution([0, 1], [0, 0], [0], 2), "2 clients cannot share 1 examples"),
        (lambda: partition.own_distribution([0.0], [0], [0], 1), "train_owner has shape (1,) and dtype float64"),
        (lambda: partition.own_distribution([0], [0], [[0]], 1), "test_labels has shape (1, 1)"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
    assert str(error.value).endswith(".")


def test_one_class_against_the_rest():
    assert partition.one_vs_rest([3, 0, 3, 1], 3).tolist() == [1, 0, 1, 0]
    for labels, message in (([1, 2], "No labels are 3"), ([3, 3], "All labels are 3")):
        with pytest.raises(InputError, match=message):
            partition.one_vs_rest(labels, 3)
