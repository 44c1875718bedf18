from __future__ import annotations

import pytest

from corefw.config.args import UserArgs
from corefw.config.redaction import HIDDEN, Redactor

ARGS = UserArgs(
    {
        "server.api_key": ("first-key", "second-key"),
        "model.model": "https://user:pass@hub.example/model",
        "server.ssl_keyfile": "/etc/key.pem",
    }
)


def test_secret_options_are_hidden_and_the_names_of_files_are_not() -> None:
    assert Redactor(ARGS).settings(ARGS) == {
        "server.api_key": HIDDEN,
        "model.model": f"https://{HIDDEN}@hub.example/model",
        "server.ssl_keyfile": "/etc/key.pem",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it sent second-key to them", f"it sent {HIDDEN} to them"),
        ("of-the-environment!", f"{HIDDEN}!"),
        ("http://collector/v1?token=abc&x=1", f"http://collector/v1?token={HIDDEN}&x=1"),
        ('{"url": "u", "access_token": "abc"}', f'{{"url": "u", "access_token": "{HIDDEN}"}}'),
        ("with hf_abcdefghijklmnopqrst in it", f"with {HIDDEN} in it"),
        ("the key is a block's hash", "the key is a block's hash"),
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(text: str, shown: str) -> None:
    assert Redactor(ARGS, ["of-the-environment", "x"]).text(text) == shown


@pytest.mark.parametrize("name", ["apiKey", "access_tokens", "hfToken", "passwords", "signing_key", "pwd", "api_keys"])
def test_names_of_secrets_are_known_in_other_spellings(name: str) -> None:
    args = UserArgs.from_keywords(plugin_config={"cache": {"remote": {name: "very-secret"}, name: "as-secret"}})
    shown = str(Redactor(args).settings(args))
    assert "very-secret" not in shown
    assert "as-secret" not in shown
    assert Redactor(args).text("very-secret and as-secret") == f"{HIDDEN} and {HIDDEN}"


def test_names_that_only_sound_like_secrets_are_shown() -> None:
    args = UserArgs.from_keywords(plugin_config={"cache": {"max_tokens": 5, "monkeys": "three", "author": "me"}})
    assert set(map(str, Redactor(args).settings(args).values())) == {"5", "three", "me"}


def test_a_plugins_setting_with_a_secret_name_is_hidden_by_name_and_by_value() -> None:
    args = UserArgs.from_keywords(plugin_config={"cache": {"token": "very-secret", "url": "http://there"}})
    redactor = Redactor(args)
    assert HIDDEN in redactor.settings(args).values()
    assert "very-secret" not in str(redactor.settings(args))
    assert "http://there" in redactor.settings(args).values()
    assert redactor.text("cache: very-secret was refused") == f"cache: {HIDDEN} was refused"
