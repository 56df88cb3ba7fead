"""What this federation runs. Every party has this file, byte for byte; a site whose file differs refuses to take part.

``clients`` has the sites with one row of zeros each: shapes can be taken from it, and nothing else is known here.
"""

import fedminimax as fm
from fedminimax.flare.study import Study


def study(clients: fm.ClientData, classes: int, rho: float) -> Study:
    """A linear classifier that is good for every site: min over the model, max over weights on the sites."""
    network = fm.models.Linear(classes)
    problem = fm.problems.robust_model(network, clients, classes, penalty=fm.ChiSquare(rho), ridge=1e-3)
    method = fm.ScaffPD(tau=0.7, sigma=0.1, local_steps=20, batch_size=32)
    metrics = [fm.metrics.ClientAccuracy(each=True), fm.metrics.ClientWeights(each=True)]
    return Study(problem, method, metrics)
