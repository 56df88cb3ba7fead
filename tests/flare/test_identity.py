"""A key counts as a site's if the certificate of that site's kit has signed it, and no other."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedminimax.flare.identity import AUTHORITY, CERTIFICATE, KEY, Certified

NAMES = ["north", "south"]
NOW = datetime.now(UTC)


def issued(name, key, by, authority, days=1):
    named = lambda text: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    made = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(by)).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(NOW - timedelta(2)).not_valid_after(NOW + timedelta(days))
    return made.sign(authority, SHA256())


@pytest.fixture(scope="module")
def keys():
    return [rsa.generate_private_key(65537, 2048) for _ in range(3)]


def kit(folder, name, keys, number=0, by="project", authority=2, days=1):
    """Write the kit of a site: its key, its certificate, and the authority's."""
    folder.mkdir()
    signs = keys[authority]
    key = keys[number].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / KEY).write_bytes(key)
    (folder / CERTIFICATE).write_bytes(issued(name, keys[number], by, signs, days).public_bytes(Encoding.PEM))
    (folder / AUTHORITY).write_bytes(issued("project", keys[2], "project", keys[2]).public_bytes(Encoding.PEM))
    return Certified(folder, NAMES)


def test_what_a_site_has_signed_holds_for_that_site(tmp_path, keys):
    north, south = kit(tmp_path / "n", "north", keys, 0), kit(tmp_path / "s", "south", keys, 1)
    signed = north.sign(b"a key")
    assert south.holds(0, b"a key", *signed)
    assert not south.holds(1, b"a key", *signed)
    assert not south.holds(2, b"a key", *signed)
    assert not south.holds(0, b"another", *signed)
    assert not south.holds(0, b"a key", south.sign(b"a key")[0], signed[1])
    assert not south.holds(0, b"a key", b"", b"")
    assert not south.holds(0, b"a key", signed[0], b"")


def test_another_authority_or_a_certificate_that_has_expired_does_not_count(tmp_path, keys):
    south = kit(tmp_path / "s", "south", keys, 1)
    for name, settings in {"other": {"authority": 1}, "old": {"days": -1}, "self": {"authority": 0, "by": "north"}}.items():
        forged = kit(tmp_path / name, "north", keys, 0, **settings)
        assert not south.holds(0, b"a key", *forged.sign(b"a key"))
