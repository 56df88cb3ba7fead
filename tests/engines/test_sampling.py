import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedminimax.random import keys, sampling


def many(fn, count):
    return np.asarray(jax.jit(jax.vmap(lambda s: fn(keys.derive(keys.root(0), s))))(jnp.arange(count)))


@pytest.mark.parametrize(("population", "size"), [(5, 2), (7, 6), (3000, 2), (4, 4), (1, 1)])
def test_subsets_have_different_members_in_range(population, size):
    drawn = many(lambda k: sampling.subset(k, population, size), 300)
    assert drawn.min() >= 0
    assert drawn.max() < population
    assert all(len(set(row)) == size for row in drawn)


def test_every_subset_is_equally_likely():
    """Chi-square over all 10 pairs of 5, for Floyd's method (small) and for the permutation (large share)."""
    for size in (2, 3):
        drawn = np.sort(many(lambda k, size=size: sampling.subset(k, 5, size), 20_000), axis=1)
        _, counts = np.unique(drawn, axis=0, return_counts=True)
        assert len(counts) == 10
        assert ((counts - 2000) ** 2 / 2000).sum() < 30  # 9 degrees of freedom: P < 0.05 %


def test_the_cost_of_a_subset_does_not_depend_on_the_population():
    """Nothing in the program has the size of the population."""
    program = jax.jit(lambda k: sampling.subset(k, 1_000_000, 10)).lower(keys.root(0)).as_text()
    assert "1000000x" not in program
    assert "10x" in program


def test_weighted_draws_follow_their_weights():
    weights = jnp.asarray([0.1, 0.0, 0.6, 0.3])
    drawn = many(lambda k: sampling.weighted(k, weights, 5, replace=True), 4000)
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=4) / drawn.size, weights, atol=0.01)


@pytest.mark.parametrize(
    ("weights", "size", "chances"),
    [
        ([1, 1, 2, 2, 2], 2, [0.25, 0.25, 0.5, 0.5, 0.5]),
        ([1, 1, 1, 1, 8, 8], 3, [0.25, 0.25, 0.25, 0.25, 1, 1]),  # 3 * 8 / 20 > 1: sure to be drawn
        ([5, 3, 1, 1], 3, [1, 1, 0.5, 0.5]),  # 3 * 3 / 10 < 1, but not among those that are left
        ([5, 1, 1, 1], 4, [1, 1, 1, 1]),
        ([0, 3, 0, 1], 1, [0, 0.75, 0, 0.25]),
        ([0, 3, 0, 1], 2, [0, 1, 0, 1]),
    ],
)
def test_draws_without_replacement_have_chances_in_proportion_to_the_weights(weights, size, chances):
    weights = jnp.asarray(weights, float)
    np.testing.assert_allclose(sampling.inclusion(weights, size), chances, rtol=1e-6)
    drawn = many(lambda k: sampling.weighted(k, weights, size, replace=False), 8000)
    assert all(len(set(row)) == size for row in drawn)
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=len(chances)) / 8000, chances, atol=0.02)


def test_more_places_than_weights_are_filled_with_others():
    drawn = many(lambda k: sampling.weighted(k, jnp.asarray([0.0, 3.0, 0.0, 1.0]), 3, replace=False), 200)
    assert all(len(set(row)) == 3 and {1, 3} < set(row) for row in drawn)


@pytest.mark.parametrize("bound", [1, 2, 7, 1000, 2**31 - 1])
def test_below_equals_the_high_word_of_the_product(bound):
    bits = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    expected = (bits.astype(np.uint64) * np.uint64(bound)) >> np.uint64(32)
    np.testing.assert_array_equal(np.asarray(sampling.below(jnp.asarray(bits), bound)), expected.astype(np.int64))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 100, 1000])
def test_each_pass_is_a_permutation_of_its_own(size):
    stream = np.asarray(sampling.shuffled(keys.derive(keys.root(1), 3), jnp.arange(3 * size), size)).reshape(3, size)
    for one in stream:
        np.testing.assert_array_equal(np.sort(one), np.arange(size))
    if size >= 16:
        assert not (stream[0] == stream[1]).all()
        assert not (stream[0] == np.arange(size)).all()


def test_shuffles_are_close_to_uniform():
    drawn = many(lambda k: sampling.shuffled(k, jnp.arange(4), 4), 24_000)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 80  # 23 degrees of freedom; a biased network gives thousands


def test_keys_at_different_places_are_unrelated():
    key = keys.root(5)
    places = [keys.derive(key, a, b) for a in range(20) for b in range(20)] + [keys.variant(key, n) for n in range(20)]
    assert len({tuple(np.asarray(k).tolist()) for k in places}) == 420
    bits = np.unpackbits(np.asarray(keys.words(key, 4000)).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.005
    np.testing.assert_array_equal(keys.words_for(key, jnp.asarray([3, 9]))[1], keys.words_for(key, jnp.asarray([9]))[0])
    assert tuple(np.asarray(keys.root(2**40 + 1)).tolist()) == (2**8, 1)


def test_words_are_the_blocks_of_jax():
    from jax.extend.random import threefry_2x32

    key, step = keys.root(2**40 + 7), 3
    counters = jnp.concatenate([jnp.full(6, step, jnp.uint32), jnp.arange(6, dtype=jnp.uint32)])
    wanted = threefry_2x32((key[0], key[1]), counters)
    np.testing.assert_array_equal(keys.words(key, 11, step), wanted[:11])
    np.testing.assert_array_equal(keys.derive(key, step, 5), wanted[jnp.array([5, 11])])
    np.testing.assert_array_equal(keys.words_for(key, jnp.full(4, step)), jnp.full(4, wanted[0]))
