"""Certificates of a small circle, for lines on loopback."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject, issuer, key):
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


def make_circle(folder: Path, names) -> dict[str, dict[str, Path]]:
    """Write an authority and a certificate for each name, valid on loopback; return the paths of each."""
    folder.mkdir(parents=True, exist_ok=True)
    signer = ec.generate_private_key(ec.SECP256R1())
    own = _builder("circle", "circle", signer).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = own.add_extension(usage, True).sign(signer, hashes.SHA256())
    authority = folder / "authority.pem"
    authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    found = {}
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signed = _builder(name, "circle", key).add_extension(x509.SubjectAlternativeName(places), False)
        certificate = signed.sign(signer, hashes.SHA256())
        paths = {"certificate": folder / f"{name}.pem", "key": folder / f"{name}.key", "authority": authority}
        paths["certificate"].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths["key"].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        found[name] = paths
    return found
