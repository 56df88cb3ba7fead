"""What a file describes becomes the objects that Python would be given, and comes back as the same file."""

import dataclasses
import functools
import gc
import textwrap

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import distributed
from fedminimax.algorithms import ALGORITHMS, PerClient
from fedminimax.experiments import kinds
from fedminimax.experiments.material import Pooled
from fedminimax.experiments.parameters import parameters

PROBLEM = '[problem]\nname = "quadratic"\nclients = 4\n'


def experiment(text, tmp_path, **files):
    for name, contents in files.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(contents))
    (tmp_path / "spec.toml").write_text(text)
    return fm.Experiment.from_toml(tmp_path / "spec.toml")


def method(text, tmp_path):
    made = experiment(f"rounds = 3\n{PROBLEM}[methods.it]\n{text}", tmp_path)
    return made.plan().methods["it"]


def test_hyper_parameters_of_every_kind(tmp_path):
    found = method(
        """
method = "FedNormSGDA"
lr_x = {piecewise = [0.1, 0.01], until = [100]}
lr_y = {name = "PowerDecay", c = 0.1, cap = 0.05}
server_lr_x = 2
solver = ["Plain", {Momentum = 0.8}, {name = "Proximal", mu = 0.3}, {Weighted = [1, 2, 3, 4, 5]}]
local_steps = {name = "UniformSteps", low = 2, high = 5}
cohort_size = 2
""",
        tmp_path,
    )
    solvers = (fm.Plain(), fm.Momentum(0.8), fm.Proximal(0.3), fm.Weighted((1, 2, 3, 4, 5)))
    assert found.algorithm == fm.FedNormSGDA(
        fm.Piecewise((0.1, 0.01), (100,)),
        fm.PowerDecay(0.1, cap=0.05),
        2.0,
        solver=solvers,
        local_steps=fm.UniformSteps(2, 5),
        cohort_size=2,
    )
    assert found.swept == []
    steps = method('method = "LocalSGDA"\nlr_x = 0.1\nlr_y = 0.1\nlocal_steps = {ClientSteps = [1, 2, 3, 4]}', tmp_path)
    assert steps.algorithm.local_steps == fm.ClientSteps((1, 2, 3, 4))


def test_lists_and_ranges_are_tried(tmp_path):
    text = """
method = "FessGDA"
lr_x = [0.1, 0.2]
lr_y = {log_uniform = [1e-4, 1e-1]}
local_steps = [2, 4]
beta = {uniform = [0, 1]}
[search]
samples = 4
halving = {factor = 2}
select = "Value"
better = "lower"
[metrics.Value]
"""
    found = method(text, tmp_path)
    assert found.lists == {"lr_x": [0.1, 0.2], "local_steps": [2, 4]}
    assert found.ranges == {"lr_y": fm.LogUniform(1e-4, 1e-1), "beta": fm.Uniform(0, 1)}
    plan = fm.Experiment.from_toml(tmp_path / "spec.toml").plan()
    assert plan.halving == fm.Halving("Value", 2, better="lower")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_is_usable_without_more_ado(name):
    """Its table is read off its declaration, and its description is that table again."""
    factory = ALGORITHMS[name]
    needed = {p.name: 0.1 for p in parameters(factory).values() if p.required}
    form = getattr(factory, "solves", fm.MinimaxProblem).__name__
    problem = {
        "MinimaxProblem": "quadratic",
        "RobustProblem": "robust_regression",
        "PersonalizedProblem": {"name": "personalized_quadratic", "network": {"ring": 4}},
    }[form]
    made = fm.Experiment(problem=problem, methods={"it": {"method": name, **needed}}, rounds=1).plan().methods["it"].algorithm
    assert made == factory(**needed)
    again = fm.Experiment(problem=problem, methods={"it": made}, rounds=1)
    assert again.plan().methods["it"].algorithm == made
    described = again.tables["methods"]["it"]
    assert fm.Experiment(problem=problem, methods={"it": described}, rounds=1).plan().methods["it"].algorithm == made


def test_problems_models_penalties_sets_and_networks(tmp_path):
    head = 'rounds = 1\n[data]\nname = "digits"\ntrain = 200\n[partition]\nname = "iid"\nclients = 4\n'
    robust = experiment(
        head + '[problem]\nname = "robust_model"\nmodel = "linear"\npenalty = {CVaR = 0.5}\n[methods.FedAvg]\nlr_x = 0.1',
        tmp_path,
    ).ready
    assert robust.problem.penalty == fm.CVaR(0.5)
    assert robust.clients.total == 200
    assert robust.problem.x0["Dense_0"]["kernel"].shape == (64, 10)  # as many outputs as the data has classes
    shared = experiment(
        head + '[problem]\nname = "robust_model"\nmodel = "linear"\nas_minimax = true\n[methods.FSGDA]\nlr_x = 0.1\nlr_y = 0.1',
        tmp_path,
    ).ready
    assert shared.problem.bind(shared.clients)[0].start.y.shape == (4,)
    personal = experiment(
        head + '[problem]\nname = "personalized_training"\nmodel = {mlp = [4]}\ncoupling = 0.1\n'
        'network = "ring"\ny_set = {l2_ball = 2.0}\n'
        "[methods.LocalTraining]\nlr_x = 0.1\nlr_y = 0.1",
        tmp_path,
    ).ready
    assert personal.problem.network.count == 4  # as many nodes as there are clients
    assert personal.problem.y_set == fm.sets.L2Ball(2.0)


def test_conditions(tmp_path):
    text = """
rounds = 2
engine = {name = "simulator", strategy = "map", devices = 1}
guard = {max_norm = 3.0, aggregate = "median"}
[availability]
probability = 0.8
wave = {amplitude = 0.5, period = 24}
delay = {median = 10, deadline = 30}
"""
    plan = experiment(text + PROBLEM + "[methods.FSGDA]\nlr_x = 0.1\nlr_y = 0.1", tmp_path).plan()
    assert plan.engine == fm.Simulator("map", 1)
    assert plan.guard == fm.Guard(max_norm=3.0, aggregate="median")
    assert plan.availability == fm.Availability(0.8, wave=fm.Wave(0.5, 24), delay=fm.Delay(10, deadline=30))


def test_held_out_data_is_apart_and_follows_each_client(tmp_path):
    text = """
rounds = 1
[problem]
name = "fair_classification"
model = "logistic"
[data]
name = "digits"
train = 600
validation = 0.2
test = 100
seed = 3
[partition]
name = "dirichlet"
clients = 4
alpha = 0.5
drop = {client_share = 0.5, example_share = 0.5}
[methods.FSGDA]
lr_x = 0.1
lr_y = 0.1
[metrics.apart]
metric = "ClientAccuracy"
on = "validation"
[metrics.pooled]
metric = "ClassAccuracy"
on = "test"
[metrics.loss]
metric = "Value"
on = "validation"
"""
    ready = experiment(text, tmp_path).ready
    held = ready.metrics["apart"].clients
    assert held.count == 4
    assert held.total == round(0.2 * 1442)
    assert len(ready.metrics["pooled"].data["labels"]) == 100
    assert ready.metrics["pooled"].classes == 10
    assert ready.metrics["loss"].clients is held or ready.metrics["loss"].clients.total == held.total
    assert ready.on["apart/worst"] == "validation"
    assert ready.on["pooled/all"] == "test"
    assert 300 < ready.clients.total < 600  # two of four have lost a half
    rows = lambda data: {row.tobytes() for row in np.asarray(data["inputs"])}
    everything = fm.data.datasets.load("digits")
    assert not rows(ready.clients.fields) & rows(held.fields)
    assert rows(held.fields) <= rows(everything.train)
    assert rows(ready.metrics["pooled"].data) <= rows(everything.test)


def test_a_table_brings_its_clients(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.3f},{'yes' if rng.random() < 0.5 else 'no'},{site}" for site in "abc" for _ in range(40)]
    (tmp_path / "sites.csv").write_text("\n".join(["age,sick,site", *lines]))
    text = """
rounds = 1
[problem]
name = "robust_model"
model = "linear"
[data]
name = "sites.csv"
label = "sick"
client = "site"
validation = 0.25
[methods.FedAvg]
lr_x = 0.1
[metrics.ClientAccuracy]
on = "validation"
"""
    ready = experiment(text, tmp_path).ready
    assert ready.clients.count == 3
    assert ready.problem.x0["Dense_0"]["kernel"].shape[1] == 2
    held = ready.metrics["ClientAccuracy"].clients
    assert (np.asarray(held.sizes) + np.asarray(ready.clients.sizes) == 30).all()
    with pytest.raises(fm.InputError, match=r"spec.toml:6: data: sites.csv is a table: say which column is the label"):
        experiment(text.replace('label = "sick"\n', ""), tmp_path).ready  # noqa: B018


OWN = '''
import jax.numpy as jnp
import numpy as np
import fedminimax as fm
from fedminimax.authoring import Algorithm, Point, Scalar, algorithm


@algorithm
class Plainly(Algorithm):
    """Everybody's gradients, one step a round."""

    lr: Scalar = 0.1

    def init(self, problem):
        return problem.start

    def round(self, problem, state, clients):
        g = clients.all().mean(self.gradient, state.x, state.y)
        return Point(state.x - self.lr * g.x, state.y + self.lr * g.y)

    def gradient(self, problem, client, x, y):
        return problem.grad(x, y, client.full)


def problem(clients, curvature: float = 1.0):
    loss = lambda x, y, batch: jnp.mean(curvature * jnp.sum((x - batch["a"]) ** 2, axis=1)) - jnp.sum(y**2) + jnp.dot(x, y)
    return fm.MinimaxProblem(loss, jnp.zeros(2), jnp.zeros(2))


def data(clients: int = 3, seed: int = 0):
    rng = np.random.default_rng(seed)
    return fm.ClientData.from_list([{"a": rng.normal(size=(4, 2)).astype("float32")} for _ in range(clients)])


def length(problem, clients, state, power: int = 2):
    return jnp.sum(jnp.abs(state.x) ** power)
'''

SPEC = """
rounds = 2
[problem]
name = "own.py:problem"
curvature = 2.0
[data]
name = "own.py:data"
clients = 5
[methods.mine]
method = "own.py:Plainly"
lr = 0.2
[metrics.length]
metric = "own.py:length"
power = 1
[metrics.error]
metric = "fedminimax.problems.gan:wgan_error"
"""


def test_everything_of_ones_own_from_a_file_beside_the_spec(tmp_path):
    made = experiment(SPEC, tmp_path, own=OWN)
    ready = made.ready
    assert ready.clients.count == 5
    assert ready.methods["mine"].algorithm.lr == 0.2
    assert set(ready.columns) == {"length", "error"}
    result = fm.run(ready.problem, ready.clients, ready.methods["mine"].algorithm, rounds=2, metrics=ready.metrics)
    assert result.final()["length"] == pytest.approx(float(np.abs(result.x).sum()))
    assert made == fm.Experiment.from_text(made.to_toml(), folders=[tmp_path])
    assert fm.Experiment(problem="quadratic", methods={"a": ready.methods["mine"].algorithm}, rounds=1).tables["methods"] == {
        "a": {"method": "own.py:Plainly", "lr": 0.2}
    }
    for wrong, says in (
        (SPEC.replace("own.py:Plainly", "own.py:Plain"), "own.py has no 'Plain': did you mean 'Plainly'?"),
        (SPEC.replace("own.py:Plainly", "mine.py:Plain"), "there is no file mine.py beside the experiment"),
        (SPEC.replace("own.py:Plainly", "my.package:Plain"), "there is no module 'my'"),
        (SPEC.replace("own.py:Plainly", "own.py:length"), "methods.mine"),
        (SPEC.replace("lr = 0.2", "lr = 'fast'"), "methods.mine.lr is 'fast': give a number"),
        (SPEC.replace("curvature", "curve"), "problem has no 'curve': did you mean 'curvature'?"),
    ):
        with pytest.raises(fm.InputError, match=says.replace("?", r"\?")):
            experiment(wrong, tmp_path)


# -- there and back ------------------------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_was(tmp_path):
    made = experiment(SPEC, tmp_path, own=OWN)
    text = made.to_toml()
    again = fm.Experiment.from_text(text, folders=[tmp_path])
    assert again == made
    assert again.to_toml() == text
    changed = fm.Experiment.from_text(text, changes=["methods.mine.lr=0.3", "name=other"], folders=[tmp_path])
    assert changed != made
    assert changed.tables == {**made.tables, "name": "other", "methods": {"mine": {"method": "own.py:Plainly", "lr": 0.3}}}


def test_objects_come_back_as_the_file_that_describes_them():
    made = fm.Experiment(
        problem=functools.partial(fm.problems.robust_model, fm.models.MLP((8,)), penalty=fm.ChiSquare(0.2), ridge=1e-3),
        data={"name": "digits", "validation": 0.1},
        partition={"name": "iid", "clients": 4},
        methods={
            "FedAvg": fm.FedAvg(fm.Piecewise((0.1, 0.01), (5,)), local_steps=fm.UniformSteps(1, 3)),
            "tried": {"method": fm.ScaffPD, "tau": [0.1, 0.2], "sigma": fm.LogUniform(1e-3, 1e-1)},
        },
        metrics={
            "ClientWeights": fm.metrics.ClientWeights(each=True),
            "acc": {"metric": fm.metrics.ClientAccuracy, "on": "test"},
        },
        rounds=10,
        seeds=(3, 4),
        guard=fm.Guard(max_norm=2.0),
        availability=fm.Availability(0.9, wave=fm.Wave(0.1, 12)),
        engine=fm.Simulator(devices=1),
        search={"select": "ClientWeights/largest", "better": "lower", "samples": 3},
    )
    again = fm.Experiment.from_text(made.to_toml())
    assert again == made
    assert made.tables["methods"]["tried"] == {"method": "ScaffPD", "tau": [0.1, 0.2], "sigma": {"log_uniform": [1e-3, 1e-1]}}
    assert made.tables["problem"] == {
        "name": "robust_model",
        "model": {"name": "mlp", "hidden": [8]},
        "penalty": {"name": "ChiSquare", "rho": 0.2},
        "ridge": 1e-3,
    }
    mine, theirs = made.plan(), again.plan()
    assert {k: dataclasses.astuple(v)[2:] for k, v in mine.methods.items()} == {
        k: dataclasses.astuple(v)[2:] for k, v in theirs.methods.items()
    }
    assert (mine.guard, mine.availability, mine.engine) == (theirs.guard, theirs.availability, theirs.engine)


def test_solvers_of_every_client_come_back():
    solvers = (fm.Plain(), fm.Momentum(0.5), fm.Plain())
    method = fm.FedNormSGDA(0.1, 0.1, solver=solvers)
    assert isinstance(method.solver, PerClient)
    made = fm.Experiment(problem="quadratic", methods={"it": method}, rounds=1)
    assert made.tables["methods"]["it"]["solver"] == [{"name": "Plain"}, {"name": "Momentum", "rho": 0.5}, {"name": "Plain"}]


def test_what_a_file_cannot_describe_is_a_sentence():
    task = fm.problems.quadratic(2)
    method = {"FSGDA": fm.FSGDA(0.1, 0.1)}
    cases = {
        "clients is a ClientData": {"problem": "fair_classification", "clients": task.clients},
        "problem is a MinimaxProblem": {"problem": task.problem},
        "metrics.distance": {"problem": "quadratic", "metrics": fm.metrics.Distance(task.solution)},
        "methods.FSGDA.lr_x": {"problem": "quadratic", "methods": {"FSGDA": fm.FSGDA(lambda t: 0.1 / (t + 1), 0.1)}},
    }
    for says, given in cases.items():
        with pytest.raises(fm.InputError, match=f"{says}.*which a file cannot describe"):
            fm.Experiment(**{"methods": method, "rounds": 1, **given}).to_toml()


def test_names_are_those_of_the_registries():
    assert kinds.METHOD.find("fess_gda") is ALGORITHMS["FessGDA"]
    assert kinds.PENALTY.get("ChiSquare") is fm.ChiSquare
    with pytest.raises(fm.InputError, match="there is no penalty 'ChiSquar': did you mean 'ChiSquare'"):
        kinds.PENALTY.get("ChiSquar")


def test_runs_that_are_given_up_end_there_and_their_settings_are_not_chosen(tmp_path):
    options = {"problem": {"name": "quadratic", "clients": 4}, "rounds": 40, "eval_every": 10, "metrics": {"Distance": {}}}
    plain = lambda lr: {"method": "ParallelSGDA", "lr_x": lr, "lr_y": 0.1}
    still, quick = 1e-9, 0.1
    whole = fm.Experiment(**options, methods={"still": plain(still), "quick": plain(quick)}).run(
        tmp_path / "whole", report=False
    )
    far, near = (record.history["Distance/x"][-1] for record in whole.records)
    rule = {"metric": "Distance/x", "above": float(far + near) / 2, "after": 20}
    given_up, kept = fm.Experiment(
        **options, methods={"still": plain(still), "quick": plain(quick)}, stop=rule
    ).run(tmp_path / "stop", report=False).records  # fmt: skip
    assert (given_up.status, given_up.rounds) == ("stopped", 20)
    assert (kept.status, kept.rounds) == ("finished", 40)
    search = {"select": "Distance/x", "better": "higher"}  # the still one is further away, and chosen unless it is given up
    for stop, best in ((None, still), (rule, quick)):
        tried = fm.Experiment(**options, methods={"both": plain([still, quick])}, search=search, stop=stop)
        (record,) = tried.run(tmp_path / f"search-{best}", report=False).records
        assert record.hyper["lr_x"] == pytest.approx(best)
    with pytest.raises(fm.InputError, match=r"give a table, such as stop = \{metric"):
        fm.Experiment(**options, methods={"still": plain(still)}, stop={"metric": "Distance/x"}).plan()


def test_one_of_many_processes_keeps_its_own_clients_examples_and_no_others(tmp_path, monkeypatch):
    data = '[data]\nname = "digits"\ntrain = 331\n[partition]\nname = "iid"\nclients = 6\n'
    problem = '[problem]\nname = "fair_classification"\nmodel = "mlp"\n[methods.FessGDA]\nlr_x = 0.1\nlr_y = 0.1\n'
    run = f'rounds = 1\nengine = "mesh"\n{data}{problem}'
    monkeypatch.setattr(distributed, "place", lambda: distributed.Place(1, 3))
    ready = experiment(run + '[metrics.ClassAccuracy]\non = "test"\n', tmp_path).ready
    assert repr(ready.clients) == "ClientShard(2 of 6 clients, process 1 of 3)"
    assert ready.clients.total == 331
    gc.collect()
    fields = lambda thing: thing.fields if isinstance(thing, fm.ClientData) else thing.train
    held = [fields(thing) for thing in gc.get_objects() if isinstance(thing, (fm.ClientData, Pooled))]
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(held) if isinstance(leaf, (np.ndarray, jax.Array))]
    assert 331 not in [shape[0] for shape in shapes if shape]
    monkeypatch.setattr(distributed, "place", lambda: distributed.Place(1, 7))
    with pytest.raises(fm.InputError, match="6 clients cannot be dealt out over 7 processes: start fewer"):
        experiment(run, tmp_path).ready  # noqa: B018
