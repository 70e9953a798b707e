// A client on rhea that logs in:  node login.js HOST:PORT MECHANISM [USER PASSWORD]
//
// It prints `open` when it is let in, and stays until its standard input ends; `refused` when it is not. rhea picks the mechanism:
// PLAIN with a user and a password, ANONYMOUS with a user alone.
"use strict";
const rhea = require("rhea");

const [address, mechanism, user, password] = process.argv.slice(2);
const [host, port] = address.split(":");
const who = mechanism === "ANONYMOUS" ? { username: "nobody" } : { username: user, password };
const connection = rhea.connect({ host, port: Number(port), reconnect: false, ...who });

connection.on("connection_open", () => {
    console.log("open");
    process.stdin.on("end", () => connection.close()).resume();
});
for (const error of ["connection_error", "disconnected"]) {
    connection.on(error, () => console.log("refused"));
}
