"""AUC, robust training and GANs: what their losses are, against what they should be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fedminimax as fm
from fedminimax.federation.client import Client
from fedminimax.players import Point
from fedminimax.problems.auc import positive_share

RNG = np.random.default_rng(0)


def images(count=24, classes=3, clients=4, size=(3, 3, 1)):
    labels = np.arange(count) % classes
    inputs = RNG.normal(size=(count, *size)) + labels.reshape(-1, *[1] * len(size)) / 3
    return fm.ClientData.equal({"inputs": inputs.astype(np.float32), "labels": labels.astype(np.int32)}, clients)


def binary(clients, positive=0):
    fields = dict(clients.fields)
    return fm.ClientData.equal({**fields, "labels": (fields["labels"] == positive).astype(np.int32)}, clients.count)


# -- AUC ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "linear", lambda outputs: jnp.tanh(outputs[:, 0])])
def test_the_minimax_form_of_auc_is_the_squared_loss_over_pairs(x64, score):
    data = binary(images())
    problem = fm.problems.auc(fm.models.Logistic(3), data, score=score, seed=4)
    x = {**problem.x0}
    h = np.asarray(problem.predict(x, data.fields["inputs"]), float)
    positive = np.asarray(data.fields["labels"]) > 0
    tau = positive.mean()
    best = {**x, "a": jnp.asarray(h[positive].mean()), "b": jnp.asarray(h[~positive].mean())}
    y = problem.best_response(best, data, np.full(4, 1 / 4))
    np.testing.assert_allclose(y, h[~positive].mean() - h[positive].mean(), rtol=1e-6)
    value = fm.metrics.objective(problem, data, Point(best, y))
    pairs = np.mean((1 - h[positive][:, None] + h[~positive][None]) ** 2)
    np.testing.assert_allclose(value, tau * (1 - tau) * (pairs - 1), rtol=1e-5)
    # a and b are the minimisers, y the maximiser
    g = fm.metrics.gradient(problem, data, Point(best, y))
    np.testing.assert_allclose([g.x["a"], g.x["b"], g.y], 0, atol=1e-7)
    worse = fm.metrics.objective(problem, data, Point({**best, "a": best["a"] + 0.1}, y))
    assert worse > value > fm.metrics.objective(problem, data, Point(best, y + 0.1))


def test_the_share_of_positives_is_what_the_clients_report(x64):
    labels = np.array([1, 1, 0, -1, 1, 0, 0, 0, -1, 2])
    clients = fm.ClientData.from_owner({"inputs": np.zeros((10, 2)), "labels": labels}, [0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    assert positive_share(clients, "size") == pytest.approx(0.4)
    assert positive_share(clients) == pytest.approx((0.5 + 0.5 + 0.25) / 3)


def test_minus_one_and_zero_are_both_negative():
    data = binary(images())
    signed = fm.ClientData.equal({**data.fields, "labels": 2 * data.fields["labels"] - 1}, 4)
    losses = [
        fm.metrics.objective(problem := fm.problems.auc(fm.models.Logistic(3), d), d, problem.start) for d in (data, signed)
    ]
    assert losses[0] == losses[1]


def test_training_auc_improves_the_auc():
    data = binary(images(240, clients=8))
    problem = fm.problems.auc(fm.models.Logistic(2), data)
    method = fm.CDMAGE(0.5, 0.5, local_steps=5, batch_size=10, cohort_size=4)
    result = fm.run(problem, data, method, rounds=60, metrics=fm.metrics.AUC())
    assert result.history["auc"][-1] > max(0.85, result.history["auc"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "margin"}, "score must be"),
        ({"output": 3}, "has 3 outputs"),
        ({"model": fm.models.Logistic(1)}, "single output"),
        ({"score": jax.nn.sigmoid}, r"score returns \(2, 3\) for two examples"),
        ({"tau": 1.0}, "share of positive examples"),
    ],
)
def test_wrong_scores_are_named(options, message):
    options = {"model": fm.models.Logistic(3), **options}
    with pytest.raises(fm.InputError, match=message):
        fm.problems.auc(options.pop("model"), binary(images()), **options)


def test_auc_takes_some_clients_and_the_share_of_all(x64):
    data = binary(images())
    given = fm.problems.auc(fm.models.Logistic(3), data.only(0), tau=1 / 3, weights=[1, 2, 3, 4])
    own = fm.problems.auc(fm.models.Logistic(3), data)
    batch = jax.tree.map(jnp.asarray, data.fields)
    np.testing.assert_allclose(given.loss(own.x0, 0.5, batch), own.loss(own.x0, 0.5, batch), rtol=1e-6)


@pytest.mark.parametrize("labels", [np.ones((24, 1)), np.full(24, 1j)])
def test_auc_takes_one_number_an_example_as_its_label(labels):
    with pytest.raises(fm.InputError, match="labels must be one number for each example"):
        fm.problems.auc(fm.models.Logistic(3), fm.ClientData.equal({**images().fields, "labels": labels}, 4))


def test_auc_needs_both_kinds_and_labels():
    data = images()
    with pytest.raises(fm.InputError, match="both kinds"):
        fm.problems.auc(fm.models.Logistic(3), fm.ClientData.equal({**data.fields, "labels": np.ones(24, int)}, 4))
    with pytest.raises(fm.InputError, match="'inputs' and 'labels'"):
        fm.problems.auc(fm.models.Logistic(3), fm.ClientData.equal({"inputs": data.fields["inputs"]}, 4))


# -- robust training ---------------------------------------------------------------------------------------------------


def test_the_perturbation_is_added_to_every_input_and_penalised(x64):
    data = images()
    problem = fm.problems.robust_training(fm.models.Logistic(3), data, 3, penalty=0.3)
    y = jnp.asarray(RNG.normal(size=(3, 3, 1)))
    logits = problem.predict(problem.x0, jnp.asarray(data.fields["inputs"], float) + y)
    entropy = -jax.nn.log_softmax(logits)[np.arange(24), data.fields["labels"]].mean()
    value = problem.value(problem.x0, y, jax.tree.map(jnp.asarray, data.fields))
    np.testing.assert_allclose(value, entropy - 0.15 * np.sum(np.square(y)), rtol=1e-6)
    assert problem.y0.shape == (3, 3, 1)


def test_the_gradient_of_the_perturbation_is_taken_from_the_sum_over_the_batch(x64):
    class Own(nn.Module):
        """The same network, which takes plain arrays only."""

        @nn.compact
        def __call__(self, inputs):
            return fm.models.MLP((5,), 3, name="inner")(inputs.reshape(len(inputs), -1))

    data = images()
    batch, y = jax.tree.map(jnp.asarray, data.fields), jnp.asarray(RNG.normal(size=(3, 3, 1)))
    apart, own = (fm.problems.robust_training(model, data, 3) for model in (fm.models.MLP((5,), 3), Own()))
    grad = jax.grad(apart.loss, argnums=(0, 1))
    program = jax.make_jaxpr(grad)(apart.x0, y, batch)
    assert (24, 9) not in [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "dot_general"]
    gx, gy = grad(apart.x0, y, batch)
    hx, hy = jax.grad(own.loss, argnums=(0, 1))({"inner": apart.x0}, y, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), (gx, gy), (hx["inner"], hy))


def test_in_the_ball_there_is_no_penalty():
    data = images()
    problem = fm.problems.robust_training(fm.models.Logistic(3), data, 3, radius=0.5)
    result = fm.run(problem, data, fm.CDMAGE(0.1, 5.0, local_steps=3, batch_size=4, cohort_size=2), rounds=10)
    assert 0.47 < np.linalg.norm(result.y) <= 0.5 + 1e-6  # each client goes to the edge; their mean is a little inside
    y = jnp.full((3, 3, 1), 0.1)
    both = [p.value(p.x0, y, data.fields) for p in (problem, fm.problems.robust_training(fm.models.Logistic(3), data, 3))]
    np.testing.assert_allclose(both[0] - both[1], 0.0005 * 0.09, rtol=1e-2)  # lambda = 0.001 is the paper's


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": 0.0}, "must be held"),
        ({"penalty": -1.0}, "must be held"),
        ({"penalty": float("nan")}, "must be held"),
        ({"radius": -1.0}, "radius"),
    ],
)
def test_a_perturbation_that_nothing_holds_is_refused(options, message):
    with pytest.raises(fm.InputError, match=message):
        fm.problems.robust_training(fm.models.Logistic(3), images(), 3, **options)


class Normalised(nn.Module):
    """A network with running statistics."""

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(inputs.reshape(len(inputs), -1)))


@pytest.mark.parametrize(
    "build",
    [
        lambda model, data: fm.problems.robust_training(model, data, 3),
        lambda model, data: fm.problems.fair_classification(model, data, 3),
        lambda model, data: fm.problems.robust_model(model, data, 3),
        lambda model, data: fm.problems.personalized_training(model, data, 3, 1.0, fm.Network.ring(4)),
    ],
)
def test_models_that_do_not_fit_the_task_are_named(build):
    with pytest.raises(fm.InputError, match="has 2 outputs, but the task needs 3"):
        build(fm.models.Logistic(2), images())
    with pytest.raises(fm.InputError, match="Normalised keeps batch_stats beside its weights"):
        build(Normalised(), images())


# -- GAN ---------------------------------------------------------------------------------------------------------------


class Affine(nn.Module):
    """A generator without batch normalisation."""

    @nn.compact
    def __call__(self, noise):
        return nn.Dense(2)(noise)


class Judge(nn.Module):
    """A discriminator without batch normalisation."""

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(1)(inputs)


def small_gan(clients=4, examples=8, **options):
    data = fm.ClientData.equal({"inputs": RNG.normal(size=(clients * examples, 2)).astype(np.float32)}, clients)
    return fm.problems.gan(Affine(), Judge(), data, latent=3, **{"coupled": False, **options}), data


def client_of(data, id=0, key=(1, 2)):
    word = jnp.asarray(np.array(key, np.uint32))
    return Client(id=id, row=id, data=data, round=0, key=word, steps_word=word[0])


def test_the_loss_is_that_of_the_paper():
    problem, data = small_gan()
    seeded = data.seeded()
    batch = jax.tree.map(lambda a: jnp.asarray(a[:6]), seeded.fields)
    real = jax.nn.sigmoid(Judge().apply({"params": problem.y0}, batch["inputs"]))
    noise = jax.vmap(lambda w: jax.random.uniform(
        jax.random.wrap_key_data(jnp.stack([w, jnp.uint32(0)])), (3,), minval=-1.0, maxval=1.0))(batch["_seed"])  # fmt: skip
    fake = jax.nn.sigmoid(Judge().apply({"params": problem.y0}, Affine().apply({"params": problem.x0}, noise)))
    expected = np.mean(np.log(real)) + np.mean(np.log(1 - np.asarray(fake)))
    np.testing.assert_allclose(problem.loss(problem.x0, problem.y0, batch), expected, rtol=1e-5)
    assert np.abs(noise).max() <= 1
    assert len(np.unique(noise)) == noise.size  # every example has noise of its own


def test_a_generator_that_does_not_saturate_descends_on_minus_log_d(x64):
    """With the logit v'(W'n + b) + c of a generated example, -log D has the slope -(1 - D) n v' in W; y sees no difference."""
    problem, data = small_gan(saturating=False)
    batch = jax.tree.map(lambda a: jnp.asarray(a[:6]), data.seeded().fields)
    made, judged = problem.x0["Dense_0"], problem.y0["Dense_0"]
    noise = np.asarray(jax.vmap(lambda w: jax.random.uniform(
        jax.random.wrap_key_data(jnp.stack([w, jnp.uint32(0)])), (3,), minval=-1.0, maxval=1.0))(batch["_seed"]))  # fmt: skip
    logit = (noise @ made["kernel"] + made["bias"]) @ judged["kernel"] + judged["bias"]
    slope = -(1 - 1 / (1 + np.exp(-np.asarray(logit)))) * np.asarray(judged["kernel"])[:, 0] / 6  # of each fake example
    g = problem.grad(problem.x0, problem.y0, batch)
    np.testing.assert_allclose(g.x["Dense_0"]["kernel"], noise.T @ slope, rtol=1e-5)
    np.testing.assert_allclose(g.x["Dense_0"]["bias"], slope.sum(0), rtol=1e-5)
    saturating = fm.problems.gan(Affine(), Judge(), data, latent=3, coupled=False).grad(problem.x0, problem.y0, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), g.y, saturating.y)


def test_the_pooled_pair_is_a_gan():
    data = fm.ClientData.equal({"inputs": RNG.uniform(-1, 1, (8, 16, 16, 1)).astype(np.float32)}, 2)
    pair = fm.models.PooledGenerator(16, features=1, hidden=3, latent=5), fm.models.PooledDiscriminator(1, hidden=3)
    problem = fm.problems.gan(*pair, data, latent=5, saturating=False)
    g = jax.jit(problem.grad, compiler_options={"xla_backend_optimization_level": 0})(
        problem.x0, problem.y0, data.seeded().fields
    )
    kernels = [layer["kernel"] for player in g for layer in player.values() if "kernel" in layer]
    assert len(kernels) == 8
    assert all(np.abs(k).max() > 0 for k in kernels)


def test_every_batch_has_fresh_noise_and_the_same_batch_the_same():
    _, data = small_gan()
    client = client_of(data.seeded())
    words = [np.asarray(client.batch(4)["_seed"]) for _ in range(3)]
    assert len(np.unique(words)) == 12
    again = client_of(data.seeded())
    assert np.array_equal(again.batch(4)["_seed"], words[0])
    assert not np.array_equal(client_of(data.seeded(), key=(1, 3)).batch(4)["_seed"], words[0])


def test_noise_is_fresh_in_every_round_for_full_batches_too():
    problem, data = small_gan()
    one = fm.run(problem, data, fm.ParallelSGDA(1e-3, 0.0), rounds=1)
    two = fm.run(problem, data, fm.ParallelSGDA(1e-3, 0.0), rounds=1, seed=1)  # all data, everybody: only the noise differs
    assert not np.array_equal(jax.tree.leaves(one.x)[1], jax.tree.leaves(two.x)[1])


def test_engines_and_unequal_clients_agree_on_the_noise():
    problem, _ = small_gan()
    fields = {"inputs": RNG.normal(size=(30, 2))}
    data = fm.ClientData.from_owner(fields, np.repeat([0, 1, 2], [4, 10, 16]))
    method = fm.CDMAGEPlus(0.05, 0.05, alpha=0.5, local_steps=2, batch_size=3, cohort_size=2)
    runs = [fm.run(problem, data, method, rounds=3, **o) for o in ({"engine": fm.Simulator(devices=2)}, {"engine": "isolated"})]
    for other in runs[1:]:
        for a, b in zip(jax.tree.leaves(runs[0].state), jax.tree.leaves(other.state), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("prior", ["normal", lambda key: jax.random.exponential(key, (3,))])
def test_any_prior(prior):
    problem, _ = small_gan(prior=prior)
    made = problem.generate(problem.x0, jax.random.key(0), 7)
    assert made.shape == (7, 2)


def test_a_gan_with_batch_normalisation_trains_and_refuses_what_makes_no_sense():
    data = fm.ClientData.equal({"inputs": RNG.uniform(-1, 1, (24, 28, 28, 1)).astype(np.float32)}, 4)
    pair = fm.models.DCGANGenerator(features=4, latent=5), fm.models.DCGANDiscriminator(features=4)
    problem = fm.problems.gan(*pair, data, latent=5)
    method = fm.ParallelSGDA(0.01, 0.01, cohort_size=2)
    result = fm.run(problem, data, method, rounds=2)
    assert any(np.abs(a - b).max() > 0 for a, b in zip(jax.tree.leaves(result.x), jax.tree.leaves(problem.x0), strict=True))
    assert problem.generate(result.x, jax.random.key(1), 3).shape == (3, 28, 28, 1)
    with pytest.raises(fm.InputError, match="depends on its batch as a whole"):
        fm.run(problem, data, method, rounds=1, metrics=fm.metrics.Value())
    with pytest.raises(fm.InputError, match="depends on its batch as a whole"):
        fm.run(problem, data, method, rounds=1, metrics=fm.metrics.ClientLoss())
    unequal = fm.ClientData.from_owner(data.fields, np.repeat([0, 1], [4, 20]))
    with pytest.raises(fm.InputError, match="divide the data equally"):
        fm.run(problem, unequal, method, rounds=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"prior": "cauchy"}, "prior must be"), ({"prior": lambda key: jax.random.normal(key, (4,))}, "latent is 3")],
)
def test_wrong_priors_are_named(options, message):
    with pytest.raises(fm.InputError, match=message):
        small_gan(**options)


def test_a_generator_of_other_images_is_refused():
    data = fm.ClientData.equal({"inputs": np.zeros((8, 3), np.float32)}, 2)
    with pytest.raises(fm.InputError, match="makes examples of shape"):
        fm.problems.gan(Affine(), Judge(), data, latent=3)


def test_a_discriminator_returns_one_logit():
    data = fm.ClientData.equal({"inputs": np.zeros((1, 2), np.float32)}, 1)  # a single example will do
    with pytest.raises(fm.InputError, match=r"discriminator returns \(4,\) for each example"):
        fm.problems.gan(Affine(), nn.Dense(4), data, latent=3)
    assert fm.problems.gan(Affine(), nn.Dense(1), data, latent=3).y0["kernel"].shape == (2, 1)


def test_a_wgan_without_a_penalty_is_refused():
    with pytest.raises(fm.InputError, match="penalty must be above zero"):
        fm.problems.wgan(0.0)
    with pytest.raises(fm.InputError, match="count is 0"):
        fm.problems.wgan(clients=0)
