"""A real TLS handshake between Python's own two ends."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path


def shake(certificate: Path, key: Path, ca: Path, host: str) -> str:
    """Whether a client that trusts `ca` and asks for `host` accepts a server: "", or the fault."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()

    def answer() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as stream:
                stream.recv(1)
        except OSError:  # the client has hung up
            far.close()

    other = threading.Thread(target=answer)
    other.start()
    try:
        with client.wrap_socket(near, server_hostname=host) as stream:
            stream.send(b"!")
        return ""
    except ssl.SSLCertVerificationError as fault:
        return fault.verify_message
    finally:
        near.close()
        other.join()
