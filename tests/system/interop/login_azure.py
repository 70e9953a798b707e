"""A client on the AMQP of Azure's libraries for Python that logs in over TLS, once for each line HOST:PORT MECHANISM USER SECRET
AUTHORITY CERTIFICATE KEY of its standard input.

It prints `open` when it is let in, and stays until there is an empty line; `refused` when it is not.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from azure.core.credentials import AccessToken
from azure.servicebus._pyamqp import sasl
from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp.authentication import JWTTokenAuth
from azure.servicebus._pyamqp.cbs import CBSAuthenticator
from azure.servicebus._pyamqp.constants import ConnectionState


def put(connection: Connection, token: str) -> bool:
    """Put a token to `$cbs`, as Azure's own API does before anything else; whether it was taken."""
    session = connection.create_session()
    session.begin()
    until_s = int(time.time()) + 600
    auth = JWTTokenAuth("amqps://broker/q", "amqps://broker/q", lambda: AccessToken(token, until_s))
    authenticator = CBSAuthenticator(session, auth, auth_timeout=30)
    authenticator.open()
    while not authenticator.handle_token():
        connection.listen(wait=True)
    return True


def main(address: str, mechanism: str, user: str, secret: str, authority: str, certificate: str, key: str) -> None:
    host, _, port = address.partition(":")
    files: dict[str, Any] = {"ca_certs": authority}
    by_token = mechanism == "CBS"
    if mechanism == "EXTERNAL":
        credential: Any = sasl.SASLExternalCredential()
        files |= {"certfile": certificate, "keyfile": key}
    else:
        anonymous = by_token or mechanism == "ANONYMOUS"
        credential = sasl.SASLAnonymousCredential() if anonymous else sasl.SASLPlainCredential(user, secret)
    transport = sasl.SASLTransport(host, credential, port=int(port), ssl_opts=files)
    connection = Connection(f"amqps://{address}", transport=transport, sasl_credential=credential)
    try:
        connection.open(wait=True)
        is_open = connection.state == ConnectionState.OPENED and (not by_token or put(connection, secret))
    except Exception as error:
        print(repr(error), file=sys.stderr)
        is_open = False
    print("open" if is_open else "refused", flush=True)
    if is_open:
        sys.stdin.readline()
        connection.close()


if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        main(*line.split())
