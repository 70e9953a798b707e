// A client on rhea that outlives its broker:  node client.js send|receive HOST:PORT,HOST:PORT,... ADDRESS COUNT
//
// A sender numbers its messages and sends a few of them every few milliseconds; what has no outcome when the connection drops, it
// sends again over the next one. A receiver counts the different numbers that come. Both print their count whenever it has grown, and
// end when it is COUNT.
"use strict";
const rhea = require("rhea");

const [role, list, address, wanted] = process.argv.slice(2);
const count = Number(wanted);
const places = list.split(",").map((place) => ({ host: place.split(":")[0], port: Number(place.split(":")[1]) }));
const seen = new Set();
const unsettled = new Set();
let again = [];
let next = 0;
let timer = null;
let tries = 0;

const connection = rhea.connect({
    connection_details: () => places[tries++ % places.length],
    initial_reconnect_delay: 10,
    max_reconnect_delay: 100,
});

function note(number) {
    if (!seen.has(number)) {
        seen.add(number);
        console.log(seen.size);
    }
    if (seen.size === count) {
        clearInterval(timer);
        connection.close();
    }
}

function turn(sender) {
    for (let burst = 0; burst < 5 && connection.is_open() && sender.sendable(); burst++) {
        const number = again.length ? again.shift() : next < count ? next++ : null;
        if (number === null) return;
        unsettled.add(number);
        sender.send({ body: number, durable: true }, Buffer.from(String(number)));
    }
}

if (role === "send") {
    const sender = connection.open_sender({ target: address, autosettle: true });
    timer = setInterval(() => turn(sender), 3);
    connection.on("accepted", (context) => {
        const number = Number(context.delivery.tag.toString());
        unsettled.delete(number);
        again = again.filter((other) => other !== number);
        note(number);
    });
    connection.on("disconnected", () => {
        again = [...unsettled];
    });
} else {
    connection.open_receiver({ source: address, credit_window: 100 });
    connection.on("message", (context) => note(context.message.body));
}
for (const error of ["sender_error", "receiver_error", "connection_error"]) {
    connection.on(error, (context) => {
        console.error(`client: ${error}: ${JSON.stringify(context)}`);
        process.exit(1);
    });
}
