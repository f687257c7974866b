"""An authority is made once; what it signs is for this machine."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509

from ackstream.local.machine import write_file
from tests.demo.secured import Authority


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    first = Authority(tmp_path)
    before = first.ca.read_bytes()
    assert Authority(tmp_path).ca.read_bytes() == before


def test_what_it_signs_is_for_this_machine_and_in_one_file_with_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    file = authority.issue("node")
    ssl.create_default_context(cafile=authority.ca).load_cert_chain(file)
    (certificate,) = x509.load_pem_x509_certificates(file.read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.ca.read_bytes()))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    left = certificate.not_valid_after_utc - datetime.now(timezone.utc)
    assert timedelta(days=364) < left <= timedelta(days=365)


def test_a_secret_replaces_a_file_that_others_could_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    file.chmod(0o644)
    write_file(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o600)
