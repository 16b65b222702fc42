# SPDX-License-Identifier: Apache-2.0
"""scripts/image_digests.py against a registry on loopback that speaks the distribution API, tokens included."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from afd.errors import ConfigError
from scripts import image_digests

INDEX = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"


class Registry:
    """Serves one tag, "team/cann:good". ``token`` is what it asks for; ``names`` the digest that it claims."""

    def __init__(
        self, *, token: str = "", grants: bool = True, names: str = DIGEST, status: int = 200
    ) -> None:
        self.token, self.grants, self.names, self.status = token, grants, names, status
        self.accepted: list[str] = []
        self.scopes: list[str] = []
        self.base = ""

    async def manifest(self, request: web.Request) -> web.Response:
        self.accepted.append(request.headers["Accept"])
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            scope = f"repository:{request.match_info['name']}:pull"
            challenge = f'Bearer realm="{self.base}/token",service="here",scope="{scope}"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        if request.match_info["tag"] != "good":
            return web.Response(status=404)
        return web.Response(body=INDEX, status=self.status, headers={"Docker-Content-Digest": self.names})

    async def give(self, request: web.Request) -> web.Response:
        self.scopes.append(f"{request.query['service']} {request.query['scope']}")
        if not self.grants:
            return web.Response(status=403)
        return web.json_response({"token": self.token})

    async def serve(self, use: Callable[[str], Coroutine[Any, Any, Any]]) -> Any:
        app = web.Application()
        app.router.add_get("/v2/{name:.+}/manifests/{tag}", self.manifest)
        app.router.add_get("/token", self.give)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            self.base = f"http://127.0.0.1:{port}"
            return await use(f"127.0.0.1:{port}/team/cann")
        finally:
            await runner.cleanup()


def resolved(registry: Registry, *tags: str) -> dict[str, str | None]:
    """What the registry's ``tags`` are, with the host left out of the keys."""

    async def use(repository: str) -> dict[str, str | None]:
        found = await image_digests.resolve_all(tuple(f"{repository}:{tag}" for tag in tags))
        return {name.rpartition(":")[2]: digest for name, digest in found.items()}

    found: dict[str, str | None] = asyncio.run(registry.serve(use))
    return found


def test_a_tag_becomes_the_digest_of_what_the_registry_sends() -> None:
    registry = Registry()
    assert resolved(registry, "good") == {"good": DIGEST}
    # An index, so that one digest is right for every architecture.
    assert registry.accepted[0].startswith("application/vnd.oci.image.index.v1+json")


def test_a_registry_that_wants_a_token_gets_the_one_it_hands_out() -> None:
    registry = Registry(token="secret")
    assert resolved(registry, "good") == {"good": DIGEST}
    assert registry.scopes == ["here repository:team/cann:pull"]


@pytest.mark.parametrize(
    ("registry", "tag", "says"),
    [
        (Registry(), "gone", "the registry has no such tag; is the row in afd/pins.toml right?"),
        (Registry(token="secret", grants=False), "good", "no anonymous access: "),
        (Registry(names=f"sha256:{'0' * 64}"), "good", f"and what it sends is {DIGEST}"),
        (Registry(status=503), "good", "the registry answers 503"),
    ],
)
def test_a_tag_that_cannot_be_resolved_is_refused_with_the_reason(
    registry: Registry, tag: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(registry, tag)
    assert says in str(caught.value)
    assert f"/team/cann:{tag}" in str(caught.value)


def test_one_tag_of_two_that_fails_fails_both_so_that_nothing_is_written() -> None:
    with pytest.raises(
        ConfigError, match=r"nothing written: .*:gone: the registry has no such tag"
    ) as caught:
        resolved(Registry(), "good", "gone")
    assert ":good" not in str(caught.value)


def test_a_registry_that_cannot_be_reached_is_named_once_for_all_its_tags() -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(image_digests.resolve_all(("127.0.0.1:1/a:1", "127.0.0.1:1/a:2")))
    assert str(caught.value).count("cannot be reached") == 1
    assert "run this on a machine that can" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tag", "url"),
    [
        ("quay.io/ascend/cann:1-a3", "https://quay.io/v2/ascend/cann/manifests/1-a3"),
        ("docker.io/library/debian:12", "https://registry-1.docker.io/v2/library/debian/manifests/12"),
        ("127.0.0.1:5000/team/a:b", "http://127.0.0.1:5000/v2/team/a/manifests/b"),
    ],
)
def test_a_tag_is_asked_for_where_its_registry_listens(tag: str, url: str) -> None:
    assert image_digests.parse(tag).url == url


def test_the_file_stays_as_it_was_when_nothing_can_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/digests.json").write_text("before")
    monkeypatch.setattr(image_digests, "ROOT", tmp_path)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert image_digests.main() == 64
    assert (tmp_path / "docker/digests.json").read_text() == "before"
    assert len(capsys.readouterr().err.splitlines()) == 1
