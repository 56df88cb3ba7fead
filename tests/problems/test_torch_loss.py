"""A PyTorch module as a player gives what the same network in JAX does."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.engines.federated import Federation, InProcess, Worker
from fedminimax.testing.contract import close

torch = pytest.importorskip("torch")


def network(kind=torch.float32):
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return made.to(kind)


def entropy(model, batch):
    return torch.nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"])


def shifted(model, y, batch):
    return torch.nn.functional.cross_entropy(model(batch["inputs"] + y), batch["labels"]) - 0.5 * (y**2).sum()


def scores(x, inputs):
    return jnp.tanh(inputs @ x["0.weight"].T + x["0.bias"]) @ x["2.weight"].T + x["2.bias"]


def jax_entropy(x, batch):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores(x, batch["inputs"])), batch["labels"][:, None], 1)
    return -jnp.mean(chosen)


def jax_shifted(x, y, batch):
    return jax_entropy(x, {**batch, "inputs": batch["inputs"] + y}) - 0.5 * jnp.sum(y**2)


def data(kind="float32"):
    rng = np.random.default_rng(0)
    rows = lambda n: {"inputs": rng.normal(size=(n, 3)).astype(kind), "labels": rng.integers(0, 2, n).astype(np.int32)}
    return fm.ClientData.from_list([rows(5), rows(7), rows(6)])


def batch_of(clients):
    return jax.tree.map(jnp.asarray, clients.fields)


def test_value_and_gradient_are_those_of_jax_in_float32():
    loss, batch = fm.TorchLoss(network(), entropy), batch_of(data())
    ours, theirs = (jax.jit(jax.value_and_grad(f))(loss.x0, batch) for f in (loss, jax_entropy))
    close(ours, theirs, 1e-6)
    close(loss.predict(loss.x0, batch["inputs"]), scores(loss.x0, batch["inputs"]), 1e-6)


def test_value_and_gradients_of_both_players_in_float64(x64):
    loss, batch, y = fm.TorchLoss(network(torch.float64), shifted), batch_of(data("float64")), jnp.array([0.1, -0.2, 0.3])
    ours, theirs = (jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(loss.x0, y, batch) for f in (loss, jax_shifted))
    close(ours, theirs, 1e-12)
    close(
        jax.grad(lambda y: 3.0 * loss(loss.x0, y, batch))(y), jax.grad(lambda y: 3.0 * jax_shifted(loss.x0, y, batch))(y), 1e-12
    )


def test_many_at_once_are_one_after_another(x64):
    loss, rows = fm.TorchLoss(network(torch.float64), entropy), batch_of(data("float64"))
    each = jax.tree.map(lambda a: a[:12].reshape(2, 3, 2, *a.shape[1:]), rows)
    models = jax.tree.map(lambda a: jnp.stack([a, 2 * a, -a]), loss.x0)
    over = lambda f: jax.vmap(jax.vmap(jax.value_and_grad(f), (0, 0)), (None, 0))  # other models in one axis alone
    close(jax.jit(over(loss))(models, each), over(jax_entropy)(models, each), 1e-12)


@functools.cache
def problems(form):
    """The same problem twice, in float64: ask for it in a test."""
    torch_loss = fm.TorchLoss(network(torch.float64), shifted if form is fm.MinimaxProblem else entropy)
    if form is fm.MinimaxProblem:
        rest = {"y0": jnp.zeros(3), "y_set": fm.sets.L2Ball(0.5)}
        return torch_loss, *(fm.MinimaxProblem(f, torch_loss.x0, **rest) for f in (torch_loss, jax_shifted))
    given = {"x0": torch_loss.x0, "penalty": fm.ChiSquare(0.1)}
    ours = fm.RobustProblem(torch_loss, predict=torch_loss.predict, **given)
    return torch_loss, ours, fm.RobustProblem(jax_entropy, predict=scores, **given)


STEPS = {"local_steps": 2, "batch_size": 3}
METHODS = [
    (fm.RobustProblem, fm.ScaffPD(0.1, 0.1, **STEPS)),
    (fm.MinimaxProblem, fm.CDMAGE(0.1, 0.1, **STEPS)),
    (fm.MinimaxProblem, fm.LocalSGDA(0.1, 0.1, **STEPS, cohort_size=2)),
]


@pytest.mark.parametrize(("form", "method"), [pytest.param(*pair, id=type(pair[1]).__name__) for pair in METHODS])
def test_whole_runs_are_those_of_jax(form, method, x64):
    _, ours, theirs = problems(form)
    metrics = fm.metrics.ClientAccuracy() if form is fm.RobustProblem else fm.metrics.Value()
    settings = {"rounds": 3, "seed": 1, "eval_every": 3, "metrics": metrics, "progress": False}
    here, there = (fm.run(problem, data("float64"), method, **settings) for problem in (ours, theirs))
    close(here.state, there.state, 1e-10)
    close(here.history, there.history, 1e-10)


def test_sites_with_modules_are_the_simulators_run(x64):
    _, problem, theirs = problems(fm.RobustProblem)
    method, clients = METHODS[0][1], data("float64")
    engine = Federation(InProcess({f"site-{k}": Worker(problem, method, clients.only(k)) for k in range(3)}))
    there = fm.run(problem, engine.clients, method, rounds=2, seed=1, engine=engine, progress=False)
    here = fm.run(theirs, clients, method, rounds=2, seed=1, progress=False)
    close(there.state, here.state, 1e-10)


def test_a_result_goes_back_into_the_module(x64):
    loss, problem, _ = problems(fm.RobustProblem)
    result = fm.run(problem, data("float64"), METHODS[0][1], rounds=1, progress=False)
    model, inputs = loss.load(result.x), data("float64").fields["inputs"]
    close(model(torch.from_numpy(np.array(inputs))).detach().numpy(), scores(result.x, inputs), 1e-12)
    assert not np.allclose(loss.x0["0.weight"], result.x["0.weight"])  # which is a copy


def test_two_modules_and_what_is_frozen():
    torch.manual_seed(1)
    maker, judge = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1)
    judge.bias.requires_grad_(False)
    against = lambda model, other, batch: other(model(batch["z"])).mean()
    loss = fm.TorchLoss(maker, against, opponent=judge)
    assert list(loss.x0) == ["weight"]
    assert list(loss.y0) == ["weight"]
    batch = {"z": jnp.array([[1.0, 2.0], [3.0, 4.0]])}
    grads = jax.grad(loss, argnums=(0, 1))(loss.x0, loss.y0, batch)
    w, v = loss.x0["weight"], loss.y0["weight"]
    close(grads, ({"weight": v * np.array([[2.0, 3.0]])}, {"weight": (w @ np.array([2.0, 3.0]))[:, None]}), 1e-6)
    both = loss.load({"weight": 2 * w}, {"weight": 3 * v})
    assert both[1].weight.item() == pytest.approx(3 * v.item())
    assert both[0].weight[0, 1].item() == pytest.approx(2 * w[0, 1].item())
    unused = fm.TorchLoss(maker, lambda model, y, batch: (y**2).sum() + 0 * batch["z"].sum())
    assert not jax.grad(unused)(loss.x0, jnp.ones(2), batch)["weight"].any()
    with pytest.raises(fm.InputError, match="no opponent"):
        _ = unused.y0


def test_the_pages_python_runs():
    page = Path(__file__).parent.parent.parent / "docs" / "torch.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    names = {}
    exec(block, names)
    assert names["result"].final()["client_accuracy/mean"] > 0.7
    assert isinstance(names["model"], torch.nn.Sequential)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        return inputs @ self.weight


def integers():
    module = torch.nn.Linear(3, 1)
    module.count = torch.nn.Parameter(torch.arange(3), requires_grad=False)
    return module


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)), "1 .BatchNorm1d. keeps running means"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5)), "Dropout. draws numbers of its own"),
        (integers, "parameter count has type torch.int64"),
        (lambda: torch.nn.Linear(3, 1).half(), "call module.float"),
        (lambda: torch.nn.Linear(3, 1).double(), "jax_enable_x64"),
        (torch.nn.Tanh, "nothing to train"),
        (lambda: "network", "takes a torch.nn.Module"),
    ],
)
def test_modules_that_clients_cannot_train(make, said):
    with pytest.raises(fm.InputError, match=said):
        fm.TorchLoss(make(), entropy)


def test_functions_that_are_no_loss():
    run = lambda module, loss: fm.run(
        fm.RobustProblem(made := fm.TorchLoss(module, loss), made.x0, fm.Agnostic()), data(), fm.FedAvg(0.1), rounds=1
    )
    with pytest.raises(fm.InputError, match=r"a tensor of shape \(1, 2\), but must return one real number"):
        run(network(), lambda model, batch: model(batch["inputs"]))
    with pytest.raises(fm.InputError, match=r"returns 1\.0, but must"):
        run(network(), lambda model, batch: 1.0)
    with pytest.raises(fm.InputError, match="changes its buffers"):
        run(Counting(), lambda model, batch: model(batch["inputs"]).mean())
    with pytest.raises(fm.InputError, match="looks up 'labels_'"):
        run(network(), lambda model, batch: model(batch["labels_"]).mean())


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(fm.InputError, match=r"fedminimax\[torch\]"):
        fm.TorchLoss(network, entropy)
