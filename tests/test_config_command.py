"""`strata config`: values with their origins, secrets masked, one written at a time."""

import stat

import pytest
from conftest import Strata
from turns import Forked, fork_server, forked  # noqa: F401


@pytest.fixture
def cli(forked: Forked) -> Strata:  # noqa: F811
    return forked


def test_list_shows_every_value_with_its_origin(cli: Strata) -> None:
    cli("config", "set", "store.max_size", "50GB", code=0)
    cli("config", "set", "models.big.path", "/models/big.gguf", code=0)
    env = {"STRATA_THREADS": "3"}
    data = cli("config", "list", "--json", env=env, code=0).data
    found = {each["key"]: each for each in data["settings"]}
    assert found["store.max_size"] | {"where": ""} == {
        "key": "store.max_size", "value": 50_000_000_000, "text": "50GB", "origin": "file", "where": "",
    }  # fmt: skip
    assert (found["threads"]["origin"], found["threads"]["where"]) == ("environment", "STRATA_THREADS")
    assert found["ctx_size"]["origin"] == "default" and found["models.big.path"]["value"] == "/models/big.gguf"
    table = cli("config", "list", env=env, code=0).stdout
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert rows["store.max_size"] == ["50GB", str(cli.home / "config.toml")]
    assert rows["threads"] == ["3", "STRATA_THREADS"] and rows["ctx_size"] == ["8192", "default"]
    assert cli("config", "list", "-q", code=0).stdout.splitlines()[0] == "model"


def test_get_prints_the_value_alone(cli: Strata) -> None:
    assert cli("config", "get", "memory.ram_mib", code=0).stdout == "2048\n"
    assert cli("config", "get", "memory.ram_mib", "-q", code=0).stdout == "2048\n"
    data = cli("config", "get", "memory.ram_mib", "--json", code=0).data
    assert (data["value"], data["origin"]) == (2048, "default")


@pytest.mark.parametrize("verb", [["get"], ["set"]])
def test_an_unknown_key_is_a_usage_error_that_names_the_nearest(cli: Strata, verb: list[str]) -> None:
    arguments = ["config", *verb, "store.max_sise", *(["1GB"] if verb == ["set"] else [])]
    result = cli(*arguments, "--json", code=2)
    assert "store.max_size" in result.envelope["error"]["message"]
    assert not cli.home.exists()


def test_a_value_of_another_kind_is_not_written(cli: Strata) -> None:
    assert "store.max_size" in cli("config", "set", "store.max_size", "ten", code=2).stderr
    assert not (cli.home / "config.toml").exists()


def test_set_writes_a_private_file_and_none_takes_it_out(cli: Strata) -> None:
    result = cli("config", "set", "model", "a.gguf", code=0)
    path = cli.home / "config.toml"
    assert str(path) in result.stderr and result.stdout == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_text() == f'model = "{cli.folder / "a.gguf"}"\n'
    cli("config", "set", "model", "none", code=0)
    assert cli("config", "get", "model", code=0).stdout == "none\n"


def test_set_says_that_a_variable_wins(cli: Strata) -> None:
    result = cli("config", "set", "threads", "4", "--json", env={"STRATA_THREADS": "2"}, code=0)
    assert result.envelope["warnings"] == ["STRATA_THREADS is set, and wins over the file"]


def test_path_needs_no_file(cli: Strata) -> None:
    assert cli("config", "path", code=0).stdout == f"{cli.home / 'config.toml'}\n"
    data = cli("config", "path", "--json", code=0).data
    assert data == {
        "file": str(cli.home / "config.toml"), "data": str(cli.home / "data"), "state": str(cli.home / "state"),
        "cache": str(cli.home / "cache"),
    }  # fmt: skip
    assert not cli.home.exists()


def test_a_secret_is_masked_everywhere(cli: Strata) -> None:
    """No setting of today is a secret by its name: a mistyped one must not be shown either."""
    cli.home.mkdir()
    (cli.home / "config.toml").write_text('[serve]\napi_key = "sk-very-secret"\n')
    for arguments in (["list"], ["list", "--json"], ["list", "-v"], ["get", "serve.port"]):
        result = cli("config", *arguments, code=0)
        assert "sk-very-secret" not in result.stdout + result.stderr
    assert "serve.api_key" in cli("config", "list", code=0).stderr


def test_a_model_that_was_typed_relative_means_the_same_from_everywhere(cli: Strata) -> None:
    (cli.folder / "a.gguf").write_bytes(b"GGUF")
    assert "no file" not in cli("config", "set", "model", "a.gguf", code=0).stderr
    assert cli("config", "get", "model", code=0).stdout == f"{cli.folder / 'a.gguf'}\n"
    assert "there is no file" in cli("config", "set", "models.b.path", "b.gguf", code=0).stderr
    for text in ("hf:o/r:f.gguf", "b"):
        cli("config", "set", "model", text, code=0)
        assert cli("config", "get", "model", code=0).stdout == f"{text}\n"


def test_whatever_set_wrote_set_can_mend(cli: Strata) -> None:
    """The documented way to take an option out leaves an alias without a file, in either order."""
    cli("config", "set", "models.big.ctx_size", "4096", code=0)
    cli("config", "set", "models.big.path", "/models/big.gguf", code=0)
    cli("config", "set", "models.big.path", "none", code=0)
    assert "models.big has neither" in cli("inspect", code=0).stderr
    assert cli("config", "get", "models.big.ctx_size", code=0).stdout == "4096\n"
    cli("config", "set", "models.big.ctx_size", "none", code=0)
    (cli.home / "config.toml").write_text('threads = "many"\n')
    assert "config set" in cli("inspect", code=2).stderr
    assert cli("config", "path", code=0).stdout.strip() == str(cli.home / "config.toml")
    assert "threads" in cli("config", "list", code=0).stderr
    cli("config", "set", "threads", "2", code=0)
    assert cli("inspect", code=0).stderr.count("threads") == 0
