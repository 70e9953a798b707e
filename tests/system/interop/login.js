// A client on rhea that logs in over TLS, once for each line of its standard input:
//   HOST:PORT MECHANISM USER SECRET AUTHORITY CERTIFICATE KEY
//
// It prints `open` when it is let in, and stays until there is an empty line; `refused` when it is not. rhea picks the mechanism:
// PLAIN with a user and a password, XOAUTH2 with a user and a token, EXTERNAL with a certificate, ANONYMOUS with a user alone.
"use strict";
const fs = require("fs");
const readline = require("readline");
const rhea = require("rhea");

let connection;

function logIn(line) {
    const [address, mechanism, username, secret, authority, certificate, key] = line.split(" ");
    const [host, port] = address.split(":");
    const who = {
        ANONYMOUS: () => ({ username: "nobody" }),
        PLAIN: () => ({ username, password: secret }),
        XOAUTH2: () => ({ username, token: secret }),
        EXTERNAL: () => ({ cert: fs.readFileSync(certificate), key: fs.readFileSync(key), enable_sasl_external: true }),
    }[mechanism]();
    connection = rhea.create_container().connect({
        host,
        port: Number(port),
        transport: "tls",
        ca: fs.readFileSync(authority),
        reconnect: false,
        ...who,
    });
    let said = false;
    const say = (word) => {
        if (!said) console.log(word);
        said = true;
    };
    connection.on("connection_open", () => say("open"));
    for (const error of ["connection_error", "disconnected"]) {
        connection.on(error, () => say("refused"));
    }
}

readline.createInterface({ input: process.stdin }).on("line", (line) => (line ? logIn(line) : connection.close()));
