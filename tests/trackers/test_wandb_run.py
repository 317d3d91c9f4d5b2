"""Weights & Biases: where a login is looked for."""

import pytest

from trackers.wandb_run import has_login


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "WANDB_CONFIG_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def test_a_key_in_the_environment_is_a_login(monkeypatch):
    assert not has_login()
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert has_login()


def test_a_login_is_that_of_the_server_in_use(home, monkeypatch):
    (home / ".netrc").write_text("machine wandb.example.org\n  login user\n  password key\n")
    (home / ".netrc").chmod(0o600)
    assert not has_login(), "the usual server is another one"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080/path")
    assert has_login()
    monkeypatch.delenv("WANDB_BASE_URL")
    (home / ".config/wandb").mkdir(parents=True)
    (home / ".config/wandb/settings").write_text("[default]\nbase_url = https://wandb.example.org\n")
    assert has_login()
    monkeypatch.setenv("NETRC", str(home / "other"))
    assert not has_login()


def test_a_file_that_is_not_one_is_no_login(home):
    (home / ".netrc").write_text("machine\n\0 what")
    (home / ".config/wandb").mkdir(parents=True)
    (home / ".config/wandb/settings").write_text("not = a = settings\nfile")
    assert not has_login()
