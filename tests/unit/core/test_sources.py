"""Secrets by reference: where they come from, and that nothing of them shows when they cannot be had."""

from __future__ import annotations

import sys

import pytest
from pydantic import ValidationError

from qtandem.core import config, sources
from qtandem.core.errors import QtandemError
from qtandem.core.sources import Source, SourceError

SECRET = "v3ry-secret-thing"


def program(text: str, **more: object) -> Source:
    return Source(command=(sys.executable, "-c", text), **more)


async def test_a_command_gives_what_it_prints() -> None:
    assert await sources.ask(program(f"print('{SECRET}')")) == SECRET


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"import sys; print('{SECRET}'); print('{SECRET}', file=sys.stderr); sys.exit(3)", "status 3"),
        (f"import time; print('{SECRET}', flush=True); time.sleep(60)", "within 1 s"),
        (f"print('{SECRET}'); print('more')", "one line"),
        ("print()", "one line"),
    ],
)
async def test_a_command_that_fails_shows_nothing_of_its_output(text: str, why: str) -> None:
    with pytest.raises(SourceError, match=why) as caught:
        await sources.ask(program(text, timeout_s=1))
    error: BaseException | None = caught.value
    assert error is not None
    assert SECRET not in f"{error} {caught.value.fix} {error.__cause__}"


async def test_a_command_that_is_not_there_says_so() -> None:
    with pytest.raises(SourceError, match="cannot be started"):
        await sources.ask(Source(command=("/nowhere/vault",)))


@pytest.mark.parametrize(
    "fields",
    [{}, {"file": "/a", "credential": "b"}, {"command": ["vault", "read"]}, {"credential": "../b"}, {"comand": ["/x"]}],
)
def test_a_source_is_one_thing_and_says_where_it_is(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Source.model_validate(fields)


def test_a_site_names_files_credentials_and_commands_side_by_side(tmp_path, monkeypatch) -> None:
    handed, file, site = tmp_path / "handed", tmp_path / "file", tmp_path / "qtandem.toml"
    handed.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(handed))
    for path, text in ((file, "from-file"), (handed / "fez", "from-systemd"), (handed / "eye", "reads-only")):
        path.write_text(text)
        path.chmod(0o600)
    site.write_text(
        f'daemon.qrmi_config = "{tmp_path}/none"\n[resources.a]\ntype = "simulator"\n'
        f'secrets = {{ one = "{file}", two = {{ credential = "fez" }}, three = {{ command = ["/bin/false"] }} }}\n'
        'observe_secrets.two.credential = "eye"\n'
    )
    loaded = config.load(site)
    assert not loaded.errors
    resource = loaded.catalog.get("a")
    assert resource.spec().settings == {"one": "from-file", "two": "from-systemd"}
    assert resource.observe_spec().settings == {"one": "from-file", "two": "reads-only"}
    (handed / "fez").unlink()
    [problem] = config.load(site).errors
    assert problem.key == "resources.a.secrets.two"
    assert "LoadCredential" in problem.fix


def test_users_keys_need_names_where_the_type_has_no_usual_ones(tmp_path) -> None:
    site = tmp_path / "qtandem.toml"
    text = f'daemon.qrmi_config = "{tmp_path}/none"\n[resources.a]\ntype = "simulator"\nowner = "user"\n'
    site.write_text(text)
    assert [problem.key for problem in config.load(site).errors] == ["resources.a.user_keys"]
    site.write_text(text + 'user_keys = ["api_key"]\n')
    assert config.load(site).catalog.get("a").registered_keys() == ("api_key",)
    site.write_text(text + 'owner_keys = ["api_key"]\n')
    with pytest.raises(QtandemError) as caught:
        config.load(site)
    assert "is not a key" in str(caught.value.cause)
