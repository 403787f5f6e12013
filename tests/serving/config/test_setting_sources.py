from pathlib import Path
from typing import Any

import pytest

from serving.config.server_config import ServerConfig
from serving.config.setting import declared_settings
from serving.config.setting_sources import old_names, read_settings, unknown_variables
from serving.config.version_policy import parse_policy
from sharded_infer.errors import InputError
from tests.support.servers import Command, run

SETTINGS = declared_settings(ServerConfig)


def read(
    folder: Path, text: str = "", environment: dict[str, str] | None = None, **flags: object
) -> dict[str, tuple[Any, str]]:
    file = folder / "server.toml"
    file.write_text(text)
    found = read_settings(
        SETTINGS, flags={"repository": "models", **flags}, environment=environment or {}, file=file
    )
    return {name: (one.value, one.source.replace(str(file), "file")) for name, one in found.items()}


def test_a_flag_comes_before_a_variable_before_the_file_before_the_default(tmp_path: Path) -> None:
    text = "port = 1\nworkers = 2\nmax_batch = 3\n"
    variables = {"SHARDED_INFER_PORT": "4", "SHARDED_INFER_WORKERS": "5"}
    found = read(tmp_path, text, variables, port=6)
    assert found["port"] == (6, "--port")
    assert found["workers"] == (5, "SHARDED_INFER_WORKERS")
    assert found["max_batch"] == (3, "file")
    assert found["max_message_mib"] == (64, "default")


def test_every_setting_can_be_said_in_a_variable_and_in_the_file(tmp_path: Path) -> None:
    lines, variables, wanted = [], {}, {}
    for name, setting in SETTINGS.items():
        if setting.is_list:
            value, said, text = ("a", "b"), '["a", "b"]', "a,b"
        elif setting.type is bool:
            value, said, text = True, "true", "on"
        elif setting.choices:
            value = text = setting.choices[-1]
            said = f'"{value}"'
        elif setting.type in (int, float):
            value, said, text = setting.type(1), "1", "1"
        elif setting.type is str:
            value, said, text = "x", '"x"', "x"
        else:
            value, said, text = parse_policy("latest:2"), '"latest:2"', "latest:2"
        wanted[name] = value
        lines.append(f"{name} = {said}")
        variables[setting.variable] = text
    del wanted["repository"]
    by_file = read(tmp_path, "\n".join(lines))
    by_variable = read(tmp_path, environment=variables)
    for name, value in wanted.items():
        assert by_file[name] == (value, "file")
        assert by_variable[name] == (value, SETTINGS[name].variable)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "unknown key 'prot'; did you mean 'port'?"),
        ("[limits]\nmax_batch = 1", "unknown key 'limits'"),
        ("port = 'x'", "expected a whole number from 0 to 65535, got 'x'"),
        ("port = true", "port .*expected a whole number"),
        ("trace_ratio = nan", "trace_ratio .*from 0 to 1, got nan"),
        ("insecure = 1", "insecure .*expected true or false, got 1"),
        ("executor = 'eager'", "executor .*expected one of inline, batched, auto, got 'eager'"),
        ("follow = 'newest'", "follow .*expected latest"),
        ("model = 'a'", "model .*expected a list of texts"),
        ("port = ", "not TOML"),
    ],
)
def test_what_a_file_must_not_say_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        read(tmp_path, text)
    assert "server.toml" in str(refused.value)


def test_a_variable_that_means_nothing_as_a_value_is_refused_by_its_name(tmp_path: Path) -> None:
    for name, text in (("WORKERS", "two"), ("WORKERS", "0"), ("INSECURE", "perhaps")):
        variable = f"SHARDED_INFER_{name}"
        with pytest.raises(InputError, match=f"{name.lower()} .{variable}.: expected .*{text}"):
            read(tmp_path, environment={variable: text})


def test_what_must_be_said_and_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="--repository, SHARDED_INFER_REPOSITORY or a key"):
        read_settings(SETTINGS, flags={}, environment={}, file=None)


def test_variables_of_the_project_that_are_none_are_named_with_the_nearest() -> None:
    known = {"SHARDED_INFER_CACHE": "x", "SHARDED_INFER_SOAK": "1", "SHARDED_INFER_PORT": "1"}
    assert unknown_variables(SETTINGS, known) == []
    (words,) = unknown_variables(SETTINGS, {**known, "SHARDED_INFER_WORKER": "1"})
    assert words == "SHARDED_INFER_WORKER: no such variable; did you mean 'SHARDED_INFER_WORKERS'?"


def test_an_old_name_is_taken_from_every_source_and_said_in_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    for flags, environment, text, where in (
        ({"metrics_port": 7}, {}, "", "--metrics-port"),
        ({}, {"SHARDED_INFER_METRICS_PORT": "7"}, "", "SHARDED_INFER_METRICS_PORT"),
        ({}, {}, "metrics_port = 7", str(file)),
    ):
        file.write_text(text)
        found = read_settings(
            SETTINGS, flags={"repository": "models", **flags}, environment=environment, file=file
        )
        assert (found["http_port"].value, found["http_port"].source) == (7, where)
        (words,) = old_names(found)
        assert words.startswith(f"{where}: metrics_port is now called http_port")
        assert unknown_variables(SETTINGS, environment) == []


def test_a_new_name_comes_before_an_old_one_of_a_later_source(tmp_path: Path) -> None:
    found = read(tmp_path, "metrics_port = 7", http_port=8)
    assert found["http_port"] == (8, "--http-port")


def test_the_command_takes_an_old_option_and_hides_it(
    sharded_infer: Command, tmp_path: Path
) -> None:
    old = ("--metrics-port", 7000)
    told = sharded_infer("serve", "-r", tmp_path, *old, "--print-config", "--json").json()
    assert told["http_port"] == {"value": 7000, "source": "--metrics-port"}
    both = sharded_infer("serve", "-r", tmp_path, *old, "--http-port", 7001)
    both.refused("--http-port and --metrics-port, its old name")
    nothing_published = run("serve", "-r", tmp_path, "--metrics-port", 0, "--port", 0)
    warning = "--metrics-port: metrics_port is now called http_port"
    assert nothing_published.stderr.count(warning) == 1, nothing_published.stderr
    assert "--metrics-port" not in sharded_infer("serve", "--help").out


def test_the_command_prints_each_value_and_where_it_came_from(
    sharded_infer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('repository = "models"\nmodel = ["a", "b"]\n')
    monkeypatch.setenv("SHARDED_INFER_CONFIG", str(file))
    monkeypatch.setenv("SHARDED_INFER_PORT", "7000")
    told = sharded_infer("serve", "--follow", "labels:stable", "--print-config", "--json").json()
    assert list(told) == list(SETTINGS)
    assert told["model"] == {"value": ["a", "b"], "source": str(file)}
    assert told["port"] == {"value": 7000, "source": "SHARDED_INFER_PORT"}
    assert told["follow"] == {"value": "labels:stable", "source": "--follow"}
    assert told["host"] == {"value": "127.0.0.1", "source": "default"}
    lines = sharded_infer("serve", "--print-config").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(SETTINGS)
    (port,) = [line.split() for line in lines if line.split()[0] == "port"]
    assert port == ["port", "7000", "SHARDED_INFER_PORT"]
