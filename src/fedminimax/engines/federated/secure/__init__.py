"""Secure aggregation: the server learns the sum of the sites' vectors, and none of them.

K. Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, against a server that
follows the protocol and would like to know more. The cryptography is of the packages ``cryptography`` and ``pycryptodome``.
"""

from fedminimax.engines.federated.secure.settings import Secure

__all__ = ["Secure"]
