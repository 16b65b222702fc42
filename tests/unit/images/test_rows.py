# SPDX-License-Identifier: Apache-2.0
"""afd/images/rows.py: the rows that ship, and what a wrong row is told."""

from __future__ import annotations

import importlib.resources

import pytest

from afd import pins
from afd.errors import ConfigError
from afd.images import rows

TEXT = importlib.resources.files("afd").joinpath("pins.toml").read_text(encoding="utf-8")
IMAGES = pins.load().images


def edited(old: str, new: str, after: str = "") -> str:
    """The file with the first ``old`` behind ``after`` replaced."""
    start = TEXT.index(after)
    assert old in TEXT[start:]
    return TEXT[:start] + TEXT[start:].replace(old, new, 1)


def test_there_is_a_row_for_every_soc_and_none_claims_a_driver_nobody_tried() -> None:
    assert list(IMAGES.socs) == ["a2", "a3", "a5"]
    assert {soc.driver_min for soc in IMAGES.socs.values()} == {rows.UNVERIFIED}


def test_only_the_soc_that_the_operator_source_has_kernels_for_gets_operators() -> None:
    built = {soc.name for soc in IMAGES.socs.values() if soc.a2e == "built"}
    assert built == set(IMAGES.operators.kernels_for) == {"a3"}


def test_every_soc_gets_everything_from_one_row_of_cann() -> None:
    for soc in IMAGES.socs.values():
        assert soc.cann is IMAGES.canns[soc.cann.version]
        assert f":{soc.cann.version}-{soc.chip}-" in soc.base(soc.oses[0])


def test_the_newest_soc_needs_the_whole_driver_and_no_devmm() -> None:
    a5 = IMAGES.socs["a5"]
    assert "/dev/devmm_svm" not in a5.device_nodes
    assert "/usr/local/Ascend/driver" in a5.mounts


def test_every_base_image_is_listed_once() -> None:
    bases = IMAGES.bases()
    assert len(bases) == len(set(bases)) == 7


@pytest.mark.parametrize(
    ("old", "new", "after", "says"),
    [
        ('chip = "910b"', 'chip = "910"', "[soc.a2]", "910b is meant for A2"),
        ('"ascend910b1"', '"910b"', "[soc.a2]", "must begin with ascend910b"),
        ('"ascend910_9391"', '"ascend910b1"', "[soc.a3]", "must begin with ascend910_93"),
        ('"ascend950dt_9582"', '"950"', "[soc.a5]", "must begin with ascend950"),
        ('"A2"', '"A3"', "[soc.a2]", "soc.a2.device_type: must be A2, not A3"),
        ('a2e = "none"', 'a2e = "built"', "[soc.a5]", "has kernels for a3 only"),
        ('a2e = "none"', 'a2e = "maybe"', "[soc.a2]", "soc.a2.a2e must look like built|none"),
        ("[soc.a2]", "[soc.910]", "", "910b means a2"),
        ("[soc.a2]", '[soc."ascend910b1"]', "", "a name for chips"),
        ("[soc.a2]", "[soc.a7]", "", "'a7' is no SOC"),
        ('cann = "', 'cann = "1', "[soc.a3]", "there is no row [cann."),
        ('driver_min = "unverified"', 'driver_min = "new"', "[soc.a3]", "soc.a3.driver_min"),
        ("cards = 16", "cards = 0", "", "soc.a3.cards must be a number above 0"),
        ("cards = 16", "cards = true", "", "soc.a3.cards must be a number above 0"),
        ('torch_npu = "', 'torch_npu = "1', "[cann.", "was not built for torch"),
        ('"https://mirrors', '"http://mirrors', "", "triton_ascend_index must look like"),
        ("amd64 = ", "x86 = ", "triton_ascend_sha256", "unknown in [cann."),
        ('arch = "arm64"', 'arch = "aarch64"', "[cam]", "cam.arch must look like"),
        ('wheel_sha256 = "', 'wheel_sha256 = "0', "[cam]", "cam.wheel_sha256 must look like"),
        ('commit = "', 'commit = "0', "[operators]", "operators.commit must look like"),
        ("uid = 1000", 'uid = "1000"', "[image]", "image.uid must be a number"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place_and_the_reason(
    old: str, new: str, after: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        pins.parse(edited(old, new, after))
    assert says in str(caught.value)


def test_the_torch_npu_of_another_row_of_cann_is_refused() -> None:
    start = TEXT.index("[cann.")
    row = TEXT[start : TEXT.index("\n\n", start)]
    (cann,) = IMAGES.canns
    other = row.replace(f'[cann."{cann}"]', '[cann."99.1"]')
    with pytest.raises(ConfigError, match=f"belongs to CANN {cann}; cells of two rows are never mixed"):
        pins.parse(TEXT + "\n" + other)
    own = other.replace(IMAGES.canns[cann].torch_npu, f"{IMAGES.canns[cann].torch}.post99")
    assert set(pins.parse(TEXT + "\n" + own).images.canns) == {cann, "99.1"}
