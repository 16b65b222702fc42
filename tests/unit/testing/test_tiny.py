# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints: the same bytes everywhere, in the real formats, published whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from afd.errors import ConfigError
from afd.testing import tiny
from afd.testing.tiny import TinyModel, tokens, weights
from tests.unit.small_disk import on_small_disk

SMALL = TinyModel(hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_layers=2, num_experts=4)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_weights_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    # Recorded once. A change here means that every checkpoint of every user changes: is that wanted?
    tiny.build(SMALL, tmp_path / "m")
    assert digest(tmp_path / "m" / "model.safetensors").startswith("fdaf27690131edc6")


def test_two_builds_write_equal_files(tmp_path: Path) -> None:
    tiny.build(SMALL, tmp_path / "a")
    tiny.build(SMALL, tmp_path / "b")
    names = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "b").iterdir())
    assert [digest(tmp_path / "a" / name) for name in names] == [
        digest(tmp_path / "b" / name) for name in names
    ]


def test_the_seed_changes_the_weights_and_nothing_else(tmp_path: Path) -> None:
    tiny.build(SMALL, tmp_path / "a")
    tiny.build(SMALL, tmp_path / "b", seed=1)
    assert digest(tmp_path / "a/model.safetensors") != digest(tmp_path / "b/model.safetensors")
    assert digest(tmp_path / "a/tokenizer.json") == digest(tmp_path / "b/tokenizer.json")
    assert digest(tmp_path / "a/config.json") == digest(tmp_path / "b/config.json")


@pytest.mark.parametrize("name", sorted(tiny.BUILTINS))
def test_files_hold_exactly_the_tensors_of_the_model(name: str, tmp_path: Path) -> None:
    model = tiny.BUILTINS[name]
    tiny.build(model, tmp_path / "m")
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted((tmp_path / "m").glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            for key in opened.keys():  # noqa: SIM118 (not a dict)
                found[key] = tuple(opened.get_slice(key).get_shape())
    assert found == dict(tiny.tensors(model))


def test_the_qwen3_moe_model_has_sparse_and_forced_dense_layers_and_tied_embeddings(tmp_path: Path) -> None:
    model = tiny.BUILTINS["tiny-qwen3-moe"]
    config = json.loads((tiny.build(model, tmp_path / "m") / "config.json").read_text())
    assert (config["decoder_sparse_step"], config["mlp_only_layers"]) == (2, [3])
    names = [name for name, _ in tiny.tensors(model)]
    assert {name.split(".")[2] for name in names if ".experts." in name} == {"1", "5"}
    assert {name.split(".")[2] for name in names if name.endswith(".mlp.up_proj.weight")} == {
        "0",
        "2",
        "3",
        "4",
    }
    assert config["tie_word_embeddings"] and "lm_head.weight" not in names


def test_shards_are_balanced_and_the_index_names_them_all(tmp_path: Path) -> None:
    tiny.build(replace(SMALL, shards=3), tmp_path / "m")
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    files = {file.name: file.stat().st_size for file in (tmp_path / "m").glob("*.safetensors")}
    assert set(index["weight_map"].values()) == set(files) and len(files) == 3
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "m" / file, framework="numpy") as opened:
            assert name in opened.keys()  # noqa: SIM118 (not a dict)
    assert max(files.values()) < 2 * min(files.values())


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_half_width_files_hold_the_nearest_values(dtype: str, tolerance: float, tmp_path: Path) -> None:
    tiny.build(replace(SMALL, dtype=dtype), tmp_path / "m")
    raw = (tmp_path / "m/model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + length])["lm_head.weight"]
    start, stop = entry["data_offsets"]
    stored = np.frombuffer(raw[8 + length + start : 8 + length + stop], "<u2")
    exact = weights.weight(SMALL, "lm_head.weight", tuple(entry["shape"])).ravel()
    if dtype == "bfloat16":
        values = (stored.astype("<u4") << 16).view("<f4")
    else:
        values = stored.view("<f2").astype("<f4")
    assert np.all(np.abs(values - exact) <= np.maximum(np.abs(exact) * tolerance, 1e-7))


def test_noise_has_mean_zero_and_variance_one() -> None:
    noise = weights.weight(
        replace(SMALL, vocab_size=4096, hidden_size=256), "model.embed_tokens.weight", (4096, 256)
    )
    assert abs(float(noise.mean())) < 0.001
    assert abs(float(noise.std()) - 0.5) < 0.001


def test_logits_of_tokens_that_cannot_be_printed_are_small() -> None:
    head = weights.weight(SMALL, "lm_head.weight", (512, 32))
    quiet = tokens.unlikely(512)
    assert {tokens.BOS, tokens.EOS} <= set(quiet)
    rest = np.delete(head, quiet, axis=0)
    assert np.abs(head[quiet]).max() < 0.2 * float(rest.std()) * 5
    assert len(rest) > 300


def test_the_tokenizer_reads_back_any_text(tmp_path: Path) -> None:
    tiny.build(SMALL, tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m/tokenizer.json"))
    assert tokenizer.get_vocab_size() == 512
    for text in ("hello attention", "Zürich 東京 \U0001f680", "tabs\tand\nlines  ", ""):
        encoded = tokenizer.encode(text)
        assert encoded.ids[0] == tokens.BOS
        assert tokenizer.decode(encoded.ids) == text
    assert len(tokenizer.encode(" attention").ids) == 2
    assert tokenizer.encode("<|user|>").ids[1:] == [tokens.SPECIALS.index("<|user|>")]


def test_a_larger_vocabulary_than_the_words_give_is_filled_up() -> None:
    assert len(set(tokens.vocabulary(2000))) == 2000
    assert len(set(tokens.vocabulary(tokens.SMALLEST))) == tokens.SMALLEST


def test_files_are_readable_by_every_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        tiny.build(SMALL, tmp_path / "m")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "m").iterdir()} == {0o644}


@pytest.mark.parametrize(
    "wrong",
    [
        {"family": "llama"}, {"dtype": "int8"}, {"vocab_size": 100}, {"num_groups": 3}, {"top_k": 9},
        {"first_k_dense": 5}, {"shards": 0}, {"sparse_step": 0}, {"tied": True},
        {"yarn_factor": 0.5}, {"num_shared_experts": 0},
    ],
)  # fmt: skip
def test_an_impossible_model_is_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny model: cannot build one with"):
        tiny.build(replace(SMALL, **wrong), tmp_path / "m")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AFD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_built_in_model_is_built_once_and_found_again(cache: Path) -> None:
    first = tiny.resolve_builtin("builtin:tiny-deepseek-v2")
    built = (first / "config.json").stat().st_mtime_ns
    assert tiny.resolve_builtin("builtin:tiny-deepseek-v2") == first
    assert (first / "config.json").stat().st_mtime_ns == built
    assert first.parent == cache / "models"


def test_an_unknown_built_in_names_the_nearest(cache: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'builtin:tiny-deepseek-v3'"):
        tiny.resolve_builtin("builtin:tiny-deepsek-v3")
    with pytest.raises(ConfigError, match=r"there are builtin:tiny-deepseek-v2 and .*builtin:tiny-qwen3-moe"):
        tiny.resolve_builtin("builtin:xyz")


def test_a_cached_model_that_lost_a_file_is_built_again(cache: Path) -> None:
    path = tiny.resolve_builtin("builtin:tiny-deepseek-v2")
    (path / "tokenizer.json").unlink()
    (path / "model.safetensors").write_bytes(b"cut")
    assert tiny.resolve_builtin("builtin:tiny-deepseek-v2") == path
    assert (path / "tokenizer.json").exists()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


BUILD = "import sys; from afd.testing import tiny; print(tiny.resolve_builtin('builtin:tiny-deepseek-v2'))"


def test_processes_that_build_at_once_agree_and_leave_nothing_behind(cache: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    paths = {process.communicate(timeout=60)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(paths) == 1
    assert [str(entry) for entry in (cache / "models").iterdir()] == list(paths)


def test_a_build_that_was_killed_an_hour_ago_is_swept_away(tmp_path: Path) -> None:
    for name, age in (("old", 7200), ("new", 60)):
        left = tmp_path / f".building-{name}"
        left.mkdir()
        os.utime(left, (left.stat().st_mtime - age,) * 2)
    tiny.build(SMALL, tmp_path / "m")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".building-new", "m"]


def test_a_cache_that_cannot_be_written_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AFD_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"Not a directory; set AFD_CACHE_DIR to a directory .* can write$"):
        tiny.resolve_builtin("builtin:tiny-deepseek-v2")


@pytest.mark.isolated
def test_a_full_disk_is_named_and_nothing_half_built_stays(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from afd.errors import ResourceError
from afd.testing import tiny
try:
    tiny.resolve_builtin("builtin:tiny-deepseek-v2")
except ResourceError as error:
    print(error.exit_code, list(Path(sys.argv[1]).rglob("*.safetensors")), error)
"""
    run = on_small_disk(code, tmp_path, {"AFD_CACHE_DIR": str(tmp_path)})
    assert run.stdout.startswith("71 [] cannot write a checkpoint"), run
    assert "the disk is full (14 MiB are needed)" in run.stdout
