# SPDX-License-Identifier: Apache-2.0
"""Writes docker/digests.json: asks each registry what the base images' tags are now (``make digests``).

The digest is computed from the manifest that the registry sends, and compared with the one it names. Nothing is written
unless every tag was resolved. A registry on this machine is spoken to without TLS, as engines do.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from afd import pins
from afd.errors import ConfigError
from afd.images import digests

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=15)
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_HUB = "docker.io"


class Unresolved(Exception):
    """Why one tag has no digest."""


@dataclass(frozen=True)
class Reference:
    """A tag taken apart: "registry/repository:tag"."""

    host: str
    repository: str
    tag: str

    @property
    def url(self) -> str:
        # The hub's API is at another name than its images say.
        host = f"registry-1.{_HUB}" if self.host == _HUB else self.host
        local = re.fullmatch(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", host)
        return f"{'http' if local else 'https'}://{host}/v2/{self.repository}/manifests/{self.tag}"


def main() -> int:
    tags = pins.load().images.bases()
    try:
        found = asyncio.run(resolve_all(tags))
    except ConfigError as error:
        print(f"digests: {error}", file=sys.stderr)
        return error.exit_code
    (ROOT / digests.FILE).write_text(digests.text(found), encoding="utf-8")
    print(f"digests: {len(found)} tags resolved, {digests.FILE} written; now: make docs, and commit both")
    return 0


async def resolve_all(tags: tuple[str, ...]) -> dict[str, str | None]:
    """Tag -> digest of all. Raises ConfigError that names every tag that failed and why."""
    async with aiohttp.ClientSession(timeout=TIMEOUT, trust_env=True) as session:
        results = await asyncio.gather(*(resolve(session, tag) for tag in tags), return_exceptions=True)
    found: dict[str, str | None] = {}
    failed: dict[str, list[str]] = {}
    for tag, result in zip(tags, results, strict=True):
        if isinstance(result, str):
            found[tag] = result
        elif isinstance(result, Unresolved):
            failed.setdefault(str(result), []).append(tag)
        else:
            raise result
    if failed:
        reasons = "; ".join(f"{', '.join(of)}: {reason}" for reason, of in failed.items())
        raise ConfigError(f"nothing written: {reasons}")
    return found


def parse(tag: str) -> Reference:
    host, _, rest = tag.partition("/")
    repository, _, name = rest.rpartition(":")
    return Reference(host, repository, name)


async def resolve(session: aiohttp.ClientSession, tag: str) -> str:
    """The digest of ``tag``. Raises Unresolved."""
    reference = parse(tag)
    try:
        return await _manifest(session, reference)
    except aiohttp.ClientConnectionError as error:
        raise Unresolved(
            f"{reference.host} cannot be reached ({error}); run this on a machine that can"
        ) from error
    except asyncio.TimeoutError as error:
        raise Unresolved(
            f"{reference.host} does not answer; run this on a machine that can reach it"
        ) from error


async def _manifest(session: aiohttp.ClientSession, reference: Reference) -> str:
    headers = {"Accept": MANIFESTS}
    for attempt in range(2):
        async with session.get(reference.url, headers=headers) as response:
            if response.status == 401 and attempt == 0:
                headers["Authorization"] = await _token(session, response.headers.get("WWW-Authenticate", ""))
                continue
            if response.status == 404:
                raise Unresolved("the registry has no such tag; is the row in afd/pins.toml right?")
            if response.status != 200:
                raise Unresolved(f"the registry answers {response.status} {response.reason}")
            content = await response.read()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            named = response.headers.get("Docker-Content-Digest", digest)
            if named != digest:
                raise Unresolved(f"the registry names {named}, and what it sends is {digest}")
            return digest
    raise Unresolved("the registry refuses its own token; the image may need a login")


async def _token(session: aiohttp.ClientSession, challenge: str) -> str:
    """An anonymous token from where the registry says."""
    scheme, _, rest = challenge.partition(" ")
    values = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    if scheme.lower() != "bearer" or "realm" not in values:
        raise Unresolved(
            f"the registry wants a login of a kind not known here ({challenge or 'no challenge'})"
        )
    query = {key: values[key] for key in ("service", "scope") if key in values}
    async with session.get(values["realm"], params=query) as response:
        if response.status != 200:
            raise Unresolved(f"no anonymous access: {values['realm']} answers {response.status}")
        document = await response.json(content_type=None)
    token = document.get("token") or document.get("access_token")
    if not token:
        raise Unresolved(f"{values['realm']} sent no token")
    return f"Bearer {token}"


if __name__ == "__main__":
    sys.exit(main())
