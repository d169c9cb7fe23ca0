"""Which token is shown to which cluster."""

from __future__ import annotations

from flexrlhf.runtime import health
from flexrlhf.runtime.ray_cluster.authentication import (
    MODE,
    TOKEN,
    TOKEN_PATH,
    known_token,
    own_token,
    token_source,
)


def test_a_cluster_of_our_own_has_a_token_that_nobody_knows():
    found = own_token({})
    assert len(found[TOKEN]) == 64
    assert own_token({TOKEN: "of another cluster"})[TOKEN] == found[TOKEN]


def test_who_switches_tokens_off_gets_none():
    assert own_token({MODE: "disabled"}) == {}
    assert known_token({MODE: "disabled", TOKEN: "abc"}) == {}


def test_a_token_is_looked_for_where_ray_looks(tmp_path):
    assert token_source({}, tmp_path) is None
    assert known_token({}, tmp_path) == {}
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("abc")
    assert token_source({}, tmp_path) == str(tmp_path / ".ray" / "auth_token")
    assert token_source({TOKEN_PATH: "/etc/token"}, tmp_path) == "/etc/token (RAY_AUTH_TOKEN_PATH)"
    assert token_source({TOKEN_PATH: "/etc/token", TOKEN: "abc"}, tmp_path) == TOKEN


def test_doctor_says_where_the_token_comes_from():
    assert "pip install" in health.check_ray(None, {}).advice
    assert health.check_ray("2.60.0", {MODE: "disabled"}).status == "warning"
    assert TOKEN in health.check_ray("2.60.0", {TOKEN: "abc"}).detail
    assert "abc" not in health.check_ray("2.60.0", {TOKEN: "abc"}).detail
