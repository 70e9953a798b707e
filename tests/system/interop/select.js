// A client on rhea with a selector:  node select.js HOST:PORT QUEUE TOPIC
//
// It receives with a selector from a queue and from a topic, sends numbered messages to both, prints the numbers that came from each
// when the last has come from both, as JSON, and ends.
"use strict";
const rhea = require("rhea");

const [address, queue, topic] = process.argv.slice(2);
const [host, port] = address.split(":");
const LAST = 9;
const got = { [queue]: [], [topic]: [] };
const connection = rhea.connect({ host, port: Number(port), reconnect: false });
let open = 0;

for (const node of [queue, topic]) {
    connection.open_receiver({ source: { address: node, filter: rhea.filter.selector("colour = 'red' AND n > 2") } });
}
connection.on("receiver_open", () => {
    if (++open < 2) return;
    for (const node of [queue, topic]) {
        const sender = connection.open_sender(node);
        sender.once("sendable", () => {
            for (let n = 0; n <= LAST; n++) {
                sender.send({ body: n, application_properties: { n, colour: n % 2 ? "red" : "blue" } });
            }
        });
    }
});
connection.on("message", (context) => {
    got[context.receiver.source.address].push(context.message.body);
    if (Object.values(got).every((numbers) => numbers.includes(LAST))) {
        console.log(JSON.stringify(got));
        connection.close();
    }
});
for (const error of ["receiver_error", "sender_error", "connection_error", "disconnected"]) {
    connection.on(error, (context) => {
        if (context.connection.is_closed()) return;
        console.error(`client: ${error}`);
        process.exit(1);
    });
}
