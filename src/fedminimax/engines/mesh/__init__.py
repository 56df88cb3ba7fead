"""One simulation over many processes, on JAX's distributed runtime."""

from fedminimax.engines.mesh.engine import Mesh
from fedminimax.engines.mesh.execution import MeshExecution
from fedminimax.engines.mesh.watch import Lost
from fedminimax.engines.rows import OwnStates

__all__ = ["Lost", "Mesh", "MeshExecution", "OwnStates"]
