// A client on rhea that logs in over TLS:  node login.js HOST:PORT MECHANISM USER SECRET AUTHORITY CERTIFICATE KEY
//
// It prints `open` when it is let in, and stays until its standard input ends; `refused` when it is not. rhea picks the mechanism:
// PLAIN with a user and a password, XOAUTH2 with a user and a token, EXTERNAL with a certificate, ANONYMOUS with a user alone.
"use strict";
const fs = require("fs");
const rhea = require("rhea");

const [address, mechanism, username, secret, authority, certificate, key] = process.argv.slice(2);
const [host, port] = address.split(":");
const who = {
    ANONYMOUS: () => ({ username: "nobody" }),
    PLAIN: () => ({ username, password: secret }),
    XOAUTH2: () => ({ username, token: secret }),
    EXTERNAL: () => ({ cert: fs.readFileSync(certificate), key: fs.readFileSync(key), enable_sasl_external: true }),
}[mechanism]();
const connection = rhea.connect({
    host,
    port: Number(port),
    transport: "tls",
    ca: fs.readFileSync(authority),
    reconnect: false,
    ...who,
});

connection.on("connection_open", () => {
    console.log("open");
    process.stdin.on("end", () => connection.close()).resume();
});
for (const error of ["connection_error", "disconnected"]) {
    connection.on(error, () => console.log("refused"));
}
