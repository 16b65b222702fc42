# SPDX-License-Identifier: Apache-2.0
"""Finding a model and judging its files: every way in which they are broken has its own sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from afd.agent import model_files
from afd.agent.model_files import inspect, resolve
from afd.errors import ConfigError
from afd.testing import tiny
from afd.testing.tiny import TinyModel

SMALL = TinyModel(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_layers=2, num_experts=4, shards=2
)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(SMALL, tmp_path_factory.mktemp("pristine") / "m")


@pytest.fixture
def model(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "m"))


def refusal(directory: Path, *, weights: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        inspect(directory, weights=weights)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(directory) + "/", "")


def test_a_good_checkpoint_has_a_fingerprint(model: Path) -> None:
    found = inspect(model)
    assert (found.architecture, found.hidden_size, found.num_layers) == ("DeepseekV2ForCausalLM", 32, 2)
    assert (found.num_experts, found.top_k, found.vocab_size) == (4, 2, 512)
    assert (found.dtype, found.quantisation) == ("float32", "none")


def test_the_digest_ignores_formatting_and_notes_of_tools_and_sees_everything_else(model: Path) -> None:
    before = inspect(model).config_digest
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({**config, "transformers_version": "9", "_name_or_path": "x"})
    )
    assert inspect(model).config_digest == before
    (model / "config.json").write_text(json.dumps({**config, "rope_theta": 5000.0}))
    assert inspect(model).config_digest != before


def test_other_names_of_the_same_sizes_are_understood(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["num_experts"] = config.pop("n_routed_experts")
    config["dtype"] = config.pop("torch_dtype")
    config["quantization_config"] = {"quant_method": "fp8"}
    found = model_files.fingerprint({"architectures": ["X"], "text_config": config}, model)
    assert (found.num_experts, found.dtype) == (4, "float32")
    assert model_files.fingerprint(config, model).quantisation == "fp8"


def cut(name: str, keep: int) -> Callable[[Path], None]:
    return lambda model: os.truncate(model / name, keep)


def text(name: str, content: str) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        (model / name).write_text(content)

    return write


def without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def only_pickles(model: Path) -> None:
    for name in (FIRST, SECOND, INDEX):
        (model / name).unlink()
    (model / "pytorch_model.bin").write_bytes(b"\x80\x02")


def no_weights(model: Path) -> None:
    only_pickles(model)
    (model / "pytorch_model.bin").unlink()


def dangling(model: Path) -> None:
    (model / SECOND).unlink()
    (model / SECOND).symlink_to("/nowhere/blob")


def fifo(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    os.mkfifo(model / "tokenizer.json")


def longer(model: Path) -> None:
    with open(model / FIRST, "ab") as file:
        file.write(b"123")


def damaged(model: Path) -> None:
    with open(model / FIRST, "r+b") as file:
        file.seek(8)
        file.write(b"!")


def moved(model: Path) -> None:
    index = json.loads((model / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = FIRST
    (model / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (without("config.json"), "no config.json, so this is not the directory of a model"),
        (text("config.json", "{"), "config.json: not valid JSON"),
        (text("config.json", "[]"), "config.json: a JSON object is expected, not list"),
        (text("config.json", "{}"), "config.json: 'architectures' must name the model's class, it is null"),
        (text("config.json", '{"architectures": ["X"]}'), "config.json: 'hidden_size' is missing"),
        (text("config.json", '{"architectures": ["X"], "hidden_size": "a"}'), "'hidden_size' must be a whole number"),
        (text("tokenizer.json", "["), "tokenizer.json: not valid JSON"),
        (fifo, "tokenizer.json: not a regular file"),
        (without(SECOND), f"{SECOND}: absent, but {FIRST} is there; download it again"),
        (dangling, f"{SECOND}: a link to /nowhere/blob, which is absent; download the model again"),
        (cut(FIRST, 0), f"{FIRST}: not a safetensors file (0 bytes)"),
        (cut(FIRST, 100), f"{FIRST}: truncated: its header has"),
        (cut(SECOND, 50_000), f"{SECOND}: truncated: 50000 of"),
        (longer, f"{FIRST}: 3 bytes more than its header says"),
        (damaged, f"{FIRST}: its header is damaged"),
        (text(FIRST, "version https://git-lfs.github.com/spec/v1\noid"), f"{FIRST}: a Git LFS pointer"),
        (text(INDEX, '{"weight_map": 1}'), f"{INDEX}: not an index of safetensors files"),
        (text(INDEX, '{"weight_map": {"a": "../x.safetensors"}}'), f"{INDEX}: names '../x.safetensors'"),
        (text(INDEX, '{"weight_map": {"a": "x.safetensors"}}'), "x.safetensors: model.safetensors.index.json names"),
        (moved, f"{FIRST}: model.safetensors.index.json says that lm_head.weight is in this file, but it is not"),
        (only_pickles, "pytorch_model.bin: pickled weights are not loaded"),
        (no_weights, "no *.safetensors file, so no weights"),
    ],
)  # fmt: skip
def test_a_broken_checkpoint_is_refused_with_its_file_and_its_fault(
    model: Path, breaks: Callable[[Path], None], message: str
) -> None:
    breaks(model)
    assert message in refusal(model)


def test_dummy_weights_need_no_files(model: Path) -> None:
    no_weights(model)
    assert inspect(model, weights=False).hidden_size == 32


def test_things_that_are_not_directories_are_refused(model: Path, tmp_path: Path) -> None:
    assert "there is no such directory" in refusal(tmp_path / "absent")
    assert "is a file; give the directory" in refusal(model / "config.json")


def test_local_paths_and_built_in_models_resolve(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("m") == resolve(str(model)) == model
    monkeypatch.setenv("AFD_CACHE_DIR", str(tmp_path / "cache"))
    assert inspect(resolve("builtin:tiny-deepseek-v3")).num_experts == 16


@pytest.mark.parametrize("name", ["/no/such/model", "./none", "a/b/c", "", "what is this", "~/no-such-model"])
def test_a_name_that_can_be_neither_path_nor_hub_id_says_what_to_give(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no such directory; give a local directory, builtin:NAME or"
    ):
        resolve(name)


def test_a_hub_model_that_cannot_be_had_is_a_clear_error() -> None:
    # In its own process: the library reads its settings when it is imported.
    code = "from afd.agent.model_files import resolve\nresolve('nobody/no-such-model')"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "afd.errors.ConfigError: model 'nobody/no-such-model': not a local directory, and not"
    )


def test_a_hub_that_does_not_answer_is_given_up_at_the_deadline() -> None:
    code = (
        "import socket, os\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "os.environ['HF_ENDPOINT'] = 'http://127.0.0.1:%d' % server.getsockname()[1]\n"
        "from afd.agent.model_files import resolve\n"
        "resolve('nobody/no-such-model', deadline_s=0.5)\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    start = time.monotonic()
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - start < 20
    assert "no answer from the hub about 'nobody/no-such-model' within 0.5 s" in run.stderr


@pytest.fixture
def shared(model: Path) -> Iterator[Path]:
    """The model where another user can reach it."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(shutil.copytree(model, Path(directory) / "m"))


def as_another_user(directory: Path) -> str:
    """The refusal that a user without any rights gets."""
    pid_read, pid_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(pid_read)
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(54321)
                os.setuid(54321)
            inspect(directory)
            os.write(pid_write, b"no error")
        except ConfigError as error:
            os.write(pid_write, str(error).encode())
        finally:
            os._exit(0)
    os.close(pid_write)
    with open(pid_read) as answer:
        message = answer.read()
    os.waitpid(child, 0)
    return message


def test_an_unreadable_file_is_a_permission_problem_with_uid_and_mode(shared: Path) -> None:
    mode = 0o600 if os.geteuid() == 0 else 0o000
    (shared / FIRST).chmod(mode)
    message = as_another_user(shared)
    assert message.startswith(f"{shared / FIRST}: a permission problem: uid ")
    assert f"may not read this (mode {mode:04o}, owner uid {os.geteuid()}); run: chmod a+rX" in message


def test_a_directory_that_cannot_be_entered_is_named_itself(shared: Path) -> None:
    mode = 0o700 if os.geteuid() == 0 else 0o000
    shared.chmod(mode)
    message = as_another_user(shared)
    shared.chmod(0o755)
    assert message.startswith(f"{shared}: a permission problem: uid ")
    assert "may not enter this directory" in message
