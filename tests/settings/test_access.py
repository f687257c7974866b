"""Settings of who clients are: what would let others in stops the start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import Gateway, load
from ackstream.settings.gateway import AccessRule

ISSUER = {"issuer": "https://login.example", "audience": ["us"]}


def loaded(**gateway: Any) -> Gateway:
    variables = {f"ACKSTREAM_GATEWAY_{key.upper()}": json.dumps(value) for key, value in gateway.items()}
    return load(environment=variables).gateway


@pytest.mark.parametrize(
    ("issuer", "reason"),
    [
        # a token of any other service that the same key signs
        ({"audience": []}, r"issuers\.0\.audience"),
        ({"issuer": ""}, r"issuers\.0\.issuer"),
        ({"algorithms": ["none"]}, r"issuers\.0\.algorithms"),
        ({"algorithms": []}, r"issuers\.0\.algorithms"),
        ({"algorithms": ["HS256"]}, "cannot be a shared secret"),
        ({"jwks_url": "http://login.example/keys"}, "must begin with https://"),
        ({"jwks_url": "file:///keys"}, "must begin with https://"),
        ({"issuer": "http://login.example"}, "its keys cannot be found"),
        ({"issuer": "me"}, "its keys cannot be found"),
        ({"jwks_url": "https://login.example/keys", "key_file": "key.pem"}, "several sources of keys"),
        ({"jwks_file": "keys.json", "key_file": "key.pem"}, "several sources of keys"),
        # whose subjects would be users, roles or those of a proxy
        *(
            ({"prefix": prefix}, "an issuer cannot have it")
            for prefix in ("user", "proxy", "role", "anonymous", "connection")
        ),
        ({"prefix": "a:b"}, r"issuers\.0\.prefix"),
    ],
    ids=str,
)
def test_an_issuer_by_whom_others_could_get_in_is_refused(issuer: dict[str, Any], reason: str) -> None:
    assert loaded(issuers=[ISSUER]).issuers[0].remote
    with pytest.raises(SettingsError, match=reason):
        loaded(issuers=[ISSUER | issuer])


@pytest.mark.parametrize("other", [{"prefix": "other"}, {"issuer": "https://other.example"}])
def test_two_issuers_have_neither_name_nor_subjects_in_common(other: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="their subjects would be the same"):
        loaded(issuers=[ISSUER, ISSUER | other])
    both = loaded(issuers=[ISSUER, ISSUER | {"prefix": "other", "issuer": "https://other.example"}])
    assert [issuer.prefix for issuer in both.issuers] == ["jwt", "other"]


def test_keys_of_the_own_machine_may_come_without_tls() -> None:
    (issuer,) = loaded(issuers=[ISSUER | {"jwks_url": "http://127.0.0.1:8090/keys"}]).issuers
    assert issuer.remote


def test_no_sentence_about_users_has_a_hash_or_a_password() -> None:
    for wrong in ({"ada": {"password": ["hunter2"]}}, {"ada": {"pasword": "hunter2"}}, {"ada": 5}, ["hunter2"]):
        with pytest.raises(SettingsError, match="users") as caught:
            loaded(users=wrong)
        assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(loaded(users={"ada": "hunter2"}))


def test_a_rule_is_for_subjects_and_roles() -> None:
    rule = AccessRule(subjects=("user:ada",), roles=("user:operator", "jwt:*")).rule
    assert rule.subjects == ("user:ada", "role:user:operator", "role:jwt:*")
    for wrong, reason in (({}, "to no client"), ({"subjects": ["role:jwt:x"]}, "is a role: write 'jwt:x' into roles")):
        with pytest.raises(SettingsError, match=reason):
            loaded(access=[wrong])
