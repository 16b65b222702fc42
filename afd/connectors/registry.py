# SPDX-License-Identifier: Apache-2.0
"""The one place that knows all connectors and transports by name."""

from __future__ import annotations

from collections.abc import Callable

from afd.connectors.base import Connector
from afd.connectors.camp2p import CAMP2pAFDConnector
from afd.connectors.collective.transport import LOOPBACK, CollectiveTransport
from afd.connectors.shm.transport import ShmTransport
from afd.connectors.transport import Transport
from afd.errors import UnsupportedError

_CONNECTORS: dict[str, Callable[[Transport], Connector]] = {CAMP2pAFDConnector.name: CAMP2pAFDConnector}
_TRANSPORTS: dict[str, Callable[[str], Transport]] = {
    ShmTransport.name: lambda host: ShmTransport(),
    CollectiveTransport.name: CollectiveTransport,
}


def transports() -> tuple[str, ...]:
    """The names of the transports that are built."""
    return tuple(_TRANSPORTS)


def connector(name: str, transport: str, host: str = LOOPBACK) -> Connector:
    """The connector called ``name`` over the agreed ``transport`` (not "auto": both roles agree on one first).

    ``host`` is the address of this machine at which the peers reach this rank, for transports that listen.
    Raises :class:`UnsupportedError` for a name that is not built, listing those that are.
    """
    make_connector, make_transport = _CONNECTORS.get(name), _TRANSPORTS.get(transport)
    if make_connector is None:
        raise UnsupportedError(f"no connector {name!r}; there is {', '.join(_CONNECTORS)}")
    if make_transport is None:
        raise UnsupportedError(f"no transport {transport!r}; there is {', '.join(_TRANSPORTS)}")
    return make_connector(make_transport(host))
