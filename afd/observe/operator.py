# SPDX-License-Identifier: Apache-2.0
"""Who may tell an agent to do something: whoever is on its host, or knows the token of the run."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Reply:
    """The answer to an operator: an HTTP status and a JSON object."""

    status: int
    body: Mapping[str, Any]


Action = Callable[[], Awaitable[Reply]]
Token = Callable[[], "bytes | None"]
"""Reads the token of the run, None when there is none."""


def refusal(request: web.Request, token: Token) -> Reply | None:
    """Why the sender of ``request`` may not act; None when it may. No answer contains the token."""
    if "Origin" in request.headers:
        return Reply(403, {"error": "forbidden", "reason": "a web page may not do this"})
    if _is_loopback(request.remote):
        return None
    known = token()
    if known is None:
        reason = "only from this host: the run has no token; set --afd-auth-token-file on all roles to allow others"
        return Reply(403, {"error": "forbidden", "reason": reason})
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # latin-1 is what HTTP headers are made of, so every header has bytes to compare.
    if scheme.lower() != "bearer" or not hmac.compare_digest(
        given.strip().encode("latin-1", "replace"), known
    ):
        reason = (
            "only from this host, or with the header Authorization: Bearer and the token of auth.token_file"
        )
        return Reply(401, {"error": "unauthorized", "reason": reason})
    return None


def _is_loopback(address: str | None) -> bool:
    if address is None:
        return False
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
