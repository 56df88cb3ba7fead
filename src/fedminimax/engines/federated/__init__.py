"""The engine of a real federation: sites that hold their own data, asked in group calls over a transport."""

from fedminimax.engines.federated.engine import Federation
from fedminimax.engines.federated.group import Event
from fedminimax.engines.federated.inprocess import InProcess
from fedminimax.engines.federated.node_model import NodeModel
from fedminimax.engines.federated.secure import Secure
from fedminimax.engines.federated.transport import Answers, Failure, Transport
from fedminimax.engines.federated.worker import Worker

__all__ = ["Answers", "Event", "Failure", "Federation", "InProcess", "NodeModel", "Secure", "Transport", "Worker"]
