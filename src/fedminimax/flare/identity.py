"""A site's identity towards its neighbours: the certificate of its kit, which the project's authority has signed.

FLARE's server carries the sites' keys to their neighbours. It is a party of the project too, but not one of the sites: a key
that it put in the place of a site's would not be signed under a certificate with that site's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedminimax.errors import InputError

CERTIFICATE, KEY, AUTHORITY = "client.crt", "client.key", "rootCA.pem"
_PADDING = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)


class Certified:
    """Signs with the key of a site's kit, and takes what is signed under the certificates of the same project.

    Args:
        startup: the kit's ``startup`` folder.
        sites: the sites' names, in the order of their numbers.
    """

    def __init__(self, startup: Path, sites: Sequence[str]):
        key = load_pem_private_key((startup / KEY).read_bytes(), None)
        if not isinstance(key, RSAPrivateKey):
            raise InputError(f"{startup / KEY} is no RSA key, as FLARE's provisioning makes them.")
        self._key, self._sites = key, tuple(sites)
        self._own = x509.load_pem_x509_certificate((startup / CERTIFICATE).read_bytes())
        self._authority = x509.load_pem_x509_certificate((startup / AUTHORITY).read_bytes())

    def sign(self, statement: bytes) -> tuple[bytes, bytes]:
        """Return the site's certificate, and its signature of a statement."""
        return self._own.public_bytes(Encoding.DER), self._key.sign(statement, _PADDING, SHA256())

    def holds(self, number: int, statement: bytes, certificate: bytes, signature: bytes) -> bool:
        """Tell whether the site of that number has signed a statement."""
        try:
            theirs = x509.load_der_x509_certificate(certificate)
            theirs.verify_directly_issued_by(self._authority)
            names = [name.value for name in theirs.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            key, now = theirs.public_key(), datetime.now(UTC)
            valid = theirs.not_valid_before_utc <= now <= theirs.not_valid_after_utc
            if names != [self._sites[number]] or not valid or not isinstance(key, RSAPublicKey):
                return False
            key.verify(signature, statement, _PADDING, SHA256())
        except (ValueError, TypeError, IndexError, InvalidSignature):
            return False
        return True
