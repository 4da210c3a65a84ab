import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.config import Config, load_config
from strata_cli.config_edit import config_set
from strata_cli.errors import UsageProblem
from strata_cli.files import Files
from strata_cli.places import find_places
from strata_cli.settings import KEYS, SECTIONS


def load(home: Path, toml: str | None = None, **environ: str) -> Config:
    if toml is not None:
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(toml)
    return load_config({"STRATA_HOME": str(home), **environ})


def test_defaults_are_those_of_the_table(home: Path) -> None:
    config = load(home)
    table = {
        "model": None, "threads": None, "gpu_layers": -1, "ctx_size": 8192,
        "auto_sessions.enabled": True, "auto_sessions.min_tokens": 512, "auto_sessions.keep": 12,
        "auto_sessions.max_age": None, "auto_sessions.root_min_tokens": 256,
        "store.state_dir": None, "store.max_size": 100_000_000_000, "store.min_free_disk_mib": 4096,
        "store.prefix_max_age": 90 * 86400, "store.similarity": 0, "store.n_min": 0,
        "store.quarantine_age": 7 * 86400,
        "memory.ram_mib": 2048, "memory.ram_conversations": 0, "memory.min_free_ram_mib": 2560,
        "memory.write_policy": "park", "memory.leave_s": 10,
        "repl.history": True, "repl.history_entries": 1000, "repl.markdown": False,
        "serve.host": "127.0.0.1", "serve.port": 8080, "serve.api_key_file": None, "serve.queue": 64,
        "serve.slot_dir": None,
    }  # fmt: skip
    assert {value.key: value.value for value in config.values} == table
    assert {value.origin for value in config.values} == {"default"}
    assert config.warnings == ()


def test_reading_makes_nothing(home: Path) -> None:
    load(home)
    assert not home.exists()


def test_environment_beats_file_beats_default(home: Path) -> None:
    toml = 'model = "a"\n[store]\nmax_size = "50GB"\nn_min = 3\n'
    config = load(home, toml, STRATA_STORE_MAX_SIZE="2GiB", STRATA_THREADS="4")
    assert config.settings.store.max_size_bytes == 2 * 2**30
    assert config.settings.store.n_min_tokens == 3
    assert (config.settings.model, config.settings.threads) == ("a", 4)
    size, minimum, keep = (config.get(k) for k in ("store.max_size", "store.n_min", "auto_sessions.keep"))
    assert (size.origin, size.where, size.text) == ("environment", "STRATA_STORE_MAX_SIZE", "2GiB")
    assert (minimum.origin, minimum.where) == ("file", str(home / "config.toml"))
    assert (keep.origin, keep.where) == ("default", "")
    assert config.is_set("model") and not config.is_set("ctx_size")


def test_an_empty_variable_is_not_set_and_none_clears_an_optional_key(home: Path) -> None:
    config = load(home, '[auto_sessions]\nmax_age = "30d"\n', STRATA_THREADS="", STRATA_AUTO_SESSIONS_MAX_AGE="none")
    assert config.settings.threads is None
    assert config.settings.auto_sessions.max_age_s is None
    assert config.get("auto_sessions.max_age").origin == "environment"


@pytest.mark.parametrize(
    ("variable", "text"),
    [("STRATA_STORE_MAX_SIZE", "ten"), ("STRATA_STORE_MAX_SIZE", "10"), ("STRATA_STORE_MAX_SIZE", "-1GB"),
     ("STRATA_STORE_SIMILARITY", "nan"), ("STRATA_STORE_SIMILARITY", "1.5"), ("STRATA_MEMORY_LEAVE_S", "inf"),
     ("STRATA_THREADS", "0"), ("STRATA_THREADS", "2.5"), ("STRATA_THREADS", "many"),
     ("STRATA_CTX_SIZE", "-1"), ("STRATA_CTX_SIZE", "1e9"), ("STRATA_GPU_LAYERS", "-2"),
     ("STRATA_AUTO_SESSIONS_ENABLED", "maybe"),
     ("STRATA_AUTO_SESSIONS_KEEP", "none"), ("STRATA_MEMORY_WRITE_POLICY", "always"),
     ("STRATA_SERVE_PORT", "65536"),
     ("STRATA_MODEL", "a\x1b[2J"), ("STRATA_AUTO_SESSIONS_MAX_AGE", "3")],
)  # fmt: skip
def test_nonsense_is_refused_and_names_its_variable(home: Path, variable: str, text: str) -> None:
    with pytest.raises(UsageProblem, match=variable) as caught:
        load(home, **{variable: text})
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize(
    "toml",
    ["ctx_size = true", "ctx_size = 1.5", 'auto_sessions = {enabled = 1.5}', "model = 3",
     "store = {state_dir = []}", "[models.x]\nflash_attn = 3\npath='a'", "[models]\n'../x' = {path = 'a'}",
     "= nonsense", "[models.x]\npath='a'\ntensor_split=[0, 0]", 'store = {similarity = []}'],
)  # fmt: skip
def test_nonsense_in_the_file_is_refused_and_names_the_file(home: Path, toml: str) -> None:
    with pytest.raises(UsageProblem, match=r"config\.toml"):
        load(home, toml)


@pytest.mark.parametrize(
    ("table", "what"), [("ctx_size = 3", "neither `path` nor `hf`"), ("path='a'\nhf='o/r'", "both `path` and `hf`")]
)
def test_a_model_that_says_not_where_it_is_is_left_out_and_told(home: Path, table: str, what: str) -> None:
    """One half-written alias must not keep every command from working."""
    found = load(home, f"threads = 2\n[models.x]\n{table}\n[models.y]\npath = 'y.gguf'")
    assert set(found.settings.models) == {"y"} and found.settings.threads == 2
    assert len(found.warnings) == 1 and what in found.warnings[0] and "models.x" in found.warnings[0]


def test_what_mends_a_file_can_read_it(home: Path) -> None:
    toml = "threads = 'many'\nctx_size = 512\n[models.x]\npath='a'\nflash_attn = 3"
    with pytest.raises(UsageProblem, match="threads"):
        load(home, toml)
    found = load_config({"STRATA_HOME": str(home)}, tolerant=True)
    assert (found.settings.threads, found.settings.ctx_size) == (None, 512)
    assert found.get("threads").origin == "default" and len(found.warnings) == 2
    (home / "config.toml").write_text("= nonsense")
    assert len(load_config({"STRATA_HOME": str(home)}, tolerant=True).warnings) == 1


def test_a_file_that_is_no_text_is_refused_in_one_line(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(UsageProblem, match=r"config\.toml.*is not TOML"):
        load(home)


def test_unknown_keys_and_variables_warn_with_the_nearest_name_and_no_value(home: Path) -> None:
    toml = '[store]\nmax_sise = "1GB"\n[serve]\napi_key = "sk-1"\n[stoer]\nx = 1\n[empty]\n'
    toml += '[models.a]\npath = "p"\nctxsize = 1\n'
    warnings = load(home, toml, STRATA_STORE_MAXSIZE="1GB", STRATA_DEBUG="1").warnings
    assert len(warnings) == 6
    assert any("store.max_sise; did you mean store.max_size?" in text for text in warnings)
    assert any("models.a.ctxsize; did you mean models.a.ctx_size?" in text for text in warnings)
    assert any("STRATA_STORE_MAXSIZE; did you mean STRATA_STORE_MAX_SIZE?" in text for text in warnings)
    assert not any("sk-1" in text for text in warnings)


def test_models_have_engine_options_and_paths_beside_the_file(home: Path) -> None:
    toml = """
[models.small]
path = "small.gguf"
gpu_layers = "all"
flash_attn = true
tensor_split = "3,1"
lora = "a.gguf:0.5"
[models.far]
hf = "owner/repo:file.gguf"
ctx_size = 4096
"""
    models = load(home, toml).settings.models
    assert models["small"].path == home / "small.gguf"
    assert (models["small"].gpu_layers, models["small"].flash_attn) == (-1, "on")
    assert (models["small"].tensor_split, models["small"].lora) == ((3.0, 1.0), ("a.gguf:0.5",))
    assert (models["far"].hf, models["far"].ctx_size, models["far"].threads) == (
        "owner/repo:file.gguf",
        4096,
        None,
    )


def test_paths_never_depend_on_the_current_folder_and_truth_reads_alike(home: Path) -> None:
    config = load(home, '[store]\nstate_dir = "big"\n', STRATA_SERVE_SLOT_DIR="slots", STRATA_REPL_MARKDOWN="yes")
    assert config.settings.store.state_dir == home / "big"
    assert config.settings.serve.slot_dir == Path.cwd() / "slots"
    assert (config.get("repl.markdown").value, config.get("repl.markdown").text) == (True, "true")


def test_get_of_an_unknown_key_names_the_nearest(home: Path) -> None:
    with pytest.raises(UsageProblem, match=r"did you mean auto_sessions\.keep"):
        load(home).get("auto_session.keep")


@pytest.mark.parametrize(
    ("key", "text", "written"),
    [("store.max_size", "20GB", '"20GB"'), ("ctx_size", "4096", "4096"), ("repl.markdown", "yes", "true"),
     ("gpu_layers", "all", '"all"'), ("gpu_layers", "12", "12"), ("memory.leave_s", "2.5", "2.5"),
     ("model", 'a"b\\c', '"a\\"b\\\\c"'), ("store.state_dir", "/mnt/x", '"/mnt/x"')],
)  # fmt: skip
def test_set_writes_a_private_file_that_reads_back(home: Path, key: str, text: str, written: str) -> None:
    places = find_places({"STRATA_HOME": str(home)})
    assert config_set(places, key, text, Files()) == ()
    assert f"{key.rpartition('.')[2]} = {written}" in places.config_file.read_text()
    assert stat.S_IMODE(places.config_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert load(home).get(key).origin == "file"
    assert [path.name for path in home.iterdir()] == ["config.toml"]


def test_set_keeps_the_rest_and_none_takes_a_key_out(home: Path) -> None:
    places = find_places({"STRATA_HOME": str(home)})
    load(home, 'model = "a"\n[future]\nx = 1\n')
    config_set(places, "models.m.path", "m.gguf", Files())
    config_set(places, "model", "none", Files())
    config = load(home)
    assert config.settings.model is None and config.settings.models["m"].path == home / "m.gguf"
    assert "[future]" in places.config_file.read_text()


def test_set_keeps_a_file_with_comments_beside_the_new_one(home: Path) -> None:
    load(home, "# mine\nctx_size = 1\n")
    warnings = config_set(find_places({"STRATA_HOME": str(home)}), "ctx_size", "2", Files())
    assert len(warnings) == 1
    assert (home / "config.toml.old").read_text() == "# mine\nctx_size = 1\n"


def test_set_writes_through_the_users_own_link(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    real = tmp_path / "dotfiles.toml"
    real.write_text("ctx_size = 1\n")
    (home / "config.toml").symlink_to(real)
    config_set(find_places({"STRATA_HOME": str(home)}), "ctx_size", "2", Files())
    assert (home / "config.toml").is_symlink() and real.read_text() == "ctx_size = 2\n"


@pytest.mark.parametrize(
    ("key", "text"),
    [("ctx_sise", "1"), ("ctx_size", "x"), ("store", "1"), ("models..path", "a"), ("models.a.pth", "b"),
     ("serve.api_key", "sk-1")],
)  # fmt: skip
def test_set_refuses_before_it_writes_and_never_repeats_an_unknown_keys_value(home: Path, key: str, text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        config_set(find_places({"STRATA_HOME": str(home)}), key, text, Files())
    assert "sk-1" not in caught.value.message
    assert not home.exists()


def test_strata_home_holds_all_four(home: Path) -> None:
    places = find_places({"STRATA_HOME": str(home)})
    assert places.config_file == home / "config.toml"
    assert (places.data, places.state, places.cache) == (home / "data", home / "state", home / "cache")


def test_a_relative_strata_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_places({"STRATA_HOME": "x"}).data == tmp_path / "x" / "data"


def test_a_strata_home_that_nobody_expanded_is_refused() -> None:
    with pytest.raises(UsageProblem, match="STRATA_HOME"):
        find_places({"STRATA_HOME": "${HOME}/strata"})


def without_strata_home(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> Mapping[str, str]:
    """platformdirs reads the process's own environment, so that is what is changed."""
    for name in [name for name in os.environ if name.startswith(("XDG_", "STRATA_"))]:
        monkeypatch.delenv(name)
    for name, text in changes.items():
        monkeypatch.delenv(name, raising=False) if text is None else monkeypatch.setenv(name, text)
    return os.environ


def test_platformdirs_decides_without_strata_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places = find_places(without_strata_home(monkeypatch, HOME=str(tmp_path)))
    folders = (places.config, places.data, places.state, places.cache)
    assert all(folder.is_relative_to(tmp_path) and "strata" in folder.parts for folder in folders)
    assert len({*folders}) >= 2 and places.data != places.config
    assert list(tmp_path.iterdir()) == []


def test_without_home_the_user_database_finds_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    places = find_places(without_strata_home(monkeypatch, HOME=None))
    assert places.data.is_relative_to(pwd.getpwuid(os.getuid()).pw_dir)


@pytest.mark.parametrize("bad_home", ["/nonexistent", "", "relative"])
def test_a_home_that_is_none_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, bad_home: str) -> None:
    with pytest.raises(UsageProblem, match="HOME") as caught:
        find_places(without_strata_home(monkeypatch, HOME=bad_home))
    assert "STRATA_HOME" in caught.value.hint


def test_a_relative_xdg_folder_is_never_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environ = without_strata_home(monkeypatch, HOME=str(tmp_path), XDG_DATA_HOME="odd/place")
    try:
        assert find_places(environ).data.is_relative_to(tmp_path)
    except UsageProblem as problem:
        assert problem.hint


@given(st.text(max_size=80))
def test_any_text_as_config_is_read_or_refused(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.toml").write_text(text, encoding="utf-8", errors="replace")
        try:
            load_config({"STRATA_HOME": folder})
        except UsageProblem as problem:
            assert "config.toml" in problem.message


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
)


@given(st.sampled_from(KEYS), ODD)
def test_any_value_is_taken_or_refused_as_usage(key: object, value: object) -> None:
    from strata_cli.config import parse_value

    try:
        parse_value(key, value, "here")  # type: ignore[arg-type]
    except UsageProblem as problem:
        assert problem.message.startswith("here: ")


def test_every_section_has_keys() -> None:
    assert {key.section for key in KEYS} == {"", *SECTIONS}
