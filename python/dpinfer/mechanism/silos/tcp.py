"""TCP with TLS: frames of bytes between a coordinator and each site, both of whom show a certificate."""

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dpinfer._validate import check_interval
from dpinfer.errors import SiloError
from dpinfer.mechanism.silos.messages import unpack
from dpinfer.mechanism.silos.site import Site

_MOST_BYTES = 2**30  # of a message; a hostile end must not fill memory
_HEAD = 8  # bytes of a message's length


def tls_context(certificate: Path, key: Path, authority: Path, *, serves: bool) -> ssl.SSLContext:
    """Return a context of TLS 1.3 in which both ends show a certificate that `authority` has signed.

    The files are PEM: this end's `certificate` and `key`, and the `authority` of the sites' own circle. A site listens,
    and `serves`. Raises OSError if a file cannot be read, or holds something else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for path in (certificate, key, authority):
        Path(path).open("rb").close()  # an error of ssl does not name the file
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        text = "certificate, key or authority is not PEM, or the key is that of another certificate"
        raise OSError(errno.EINVAL, text, str(certificate)) from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _send(line: ssl.SSLSocket, message: bytes) -> None:
    line.sendall(len(message).to_bytes(_HEAD, "little") + message)


def _take(line: ssl.SSLSocket, size: int) -> bytes:
    parts = []
    while size:
        part = line.recv(min(size, 2**20))
        if not part:
            raise ConnectionError("the line was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _receive(line: ssl.SSLSocket) -> bytes:
    size = int.from_bytes(_take(line, _HEAD), "little")
    if size > _MOST_BYTES:
        raise ConnectionError("a message is too long")
    return _take(line, size)


class TcpLine:
    """A line to sites that listen at addresses (host, port), with a :func:`tls_context`.

    A site that does not answer within `timeout` seconds is lost for the rest of the session; its first answer may need
    a curator's consent.
    """

    def __init__(
        self, addresses: Sequence[tuple[str, int]], context: ssl.SSLContext, *, timeout: float = 600.0
    ) -> None:
        self._addresses, self._context = tuple(addresses), context
        self._timeout = check_interval("timeout", timeout, 0.0)
        self._lines: dict[int, ssl.SSLSocket] = {}
        self._lost: set[int] = set()
        self.n_sites = len(self._addresses)

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send each site its message, and return the replies of those that answered in time."""
        with ThreadPoolExecutor(max(len(messages), 1)) as threads:
            replies = threads.map(self._ask, messages.keys(), messages.values())
            return {place: reply for place, reply in zip(messages, replies, strict=True) if reply is not None}

    def close(self) -> None:
        """Close all lines."""
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.close()
        self._lines.clear()
        self._lost.clear()

    def _ask(self, place: int, message: bytes) -> bytes | None:
        if place in self._lost:
            return None
        try:
            if place not in self._lines:
                host, port = self._addresses[place]
                plain = socket.create_connection((host, port), self._timeout)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._lines[place] = self._context.wrap_socket(plain, server_hostname=host)
            line = self._lines[place]
            _send(line, message)
            return _receive(line)
        except OSError:
            # Later bytes are lost: the line is closed.
            self._lost.add(place)
            line_or_none = self._lines.pop(place, None)
            if line_or_none is not None:
                line_or_none.close()
            return None

    def __enter__(self) -> "TcpLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens, for a ``with`` statement; port 0 takes a free one."""
    return socket.create_server((host, port))


def serve(
    site: Site,
    server: socket.socket,
    context: ssl.SSLContext,
    *,
    sessions: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Answer coordinators, one after the other, on a socket of :func:`listening` and with a :func:`tls_context`.

    The function stops after `sessions` lines, never by default; `tell` gets a line about each failure.

    **Privacy.** The site reads its records, and masks its answers.
    """
    served = 0
    while sessions is None or served < sessions:
        plain, address = server.accept()
        served += 1
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with context.wrap_socket(plain, server_side=True) as line:
                _answer(site, line)
        except OSError as error:
            tell(f"the line to {address[0]} ended: {type(error).__name__}")


def _answer(site: Site, line: ssl.SSLSocket) -> None:
    """Answer one coordinator until it is done, or goes away."""
    while True:
        try:
            message = _receive(line)
        except ConnectionError:
            return
        reply = site.answer(message)
        _send(line, reply)
        with contextlib.suppress(SiloError):
            if unpack(reply).kind == "bye":
                return
