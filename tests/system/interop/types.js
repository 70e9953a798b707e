// Every type through rhea:  node types.js HOST:PORT EXCHANGE QUEUE CHOSEN  (see values.py)
"use strict";
const rhea = require("rhea");
const assert = require("assert");

const [address, exchange, queue, chosen] = process.argv.slice(2);
const [host, port] = address.split(":");
const { types } = rhea;
const bytes = (from, to) => Buffer.from(Array.from({ length: to - from }, (_, at) => from + at));
const ones = (length, first) => Buffer.concat([Buffer.from(first), Buffer.alloc(length - first.length, 1)]);
// What is sent for each type, and what comes back where that is not the same.
const values = {
    null: [null],
    true: [true],
    false: [false],
    ubyte: [types.wrap_ubyte(255), 255],
    ushort: [types.wrap_ushort(65535), 65535],
    uint: [types.wrap_uint(4294967295), 4294967295],
    ulong: [types.wrap_ulong(Buffer.alloc(8, 255)), Buffer.alloc(8, 255)],
    byte: [types.wrap_byte(-128), -128],
    short: [types.wrap_short(-32768), -32768],
    int: [types.wrap_int(-2147483648), -2147483648],
    long: [types.wrap_long(Buffer.from("8000000000000000", "hex")), Buffer.from("8000000000000000", "hex")],
    float: [types.wrap_float(0.5), 0.5],
    double: [types.wrap_double(-0.25), -0.25],
    decimal32: [new types.Decimal32(Buffer.from("22f00001", "hex")), Buffer.from("22f00001", "hex")],
    decimal64: [new types.Decimal64(Buffer.from("2230000000000001", "hex")), Buffer.from("2230000000000001", "hex")],
    decimal128: [new types.Decimal128(ones(16, [0x22, 0x08])), ones(16, [0x22, 0x08])],
    char: [types.wrap_char(0x2603), 0x2603],
    timestamp: [types.wrap_timestamp(1700000000123), new Date(1700000000123)],
    uuid: [types.wrap_uuid(bytes(0, 16)), bytes(0, 16)],
    binary: [types.wrap_binary(Buffer.from([0, 255])), Buffer.from([0, 255])],
    string: ["\u2603 and snow"],
    symbol: [types.wrap_symbol("a-symbol"), "a-symbol"],
    list: [["one", true, ["nested"]]],
    map: [{ one: "first", two: ["second"] }],
    array: [types.wrap_array([1, -2, 3], 0x71), [1, -2, 3]],
    large: [types.wrap_binary(Buffer.alloc(3000000, 0xa5)), Buffer.alloc(3000000, 0xa5)],
};
const header = { durable: true, priority: 7, message_id: "the id", correlation_id: "the question", group_id: "a group" };
Object.assign(header, { subject: "a subject", reply_to: "answers", content_type: "text/x-made-up", group_sequence: 3 });
const names = Object.keys(values);
const same = [];
const selected = [];
let came = 0;

const connection = rhea.connect({ host, port: Number(port), reconnect: false });
const filter = rhea.filter.selector("name = 'uuid'");
connection.open_receiver({ source: queue, credit_window: 10 });
const sender = connection.open_sender(exchange);
sender.once("sendable", () => {
    for (const name of names) sender.send({ body: values[name][0], application_properties: { name }, ...header });
});
connection.on("message", ({ message, receiver }) => {
    const { name } = message.application_properties;
    if (receiver.source.address === chosen) {
        selected.push(name);
        console.log(JSON.stringify({ same, chosen: selected }));
        connection.close();
        return;
    }
    try {
        const [sent, back] = values[name];
        assert.strictEqual(name, names[came]);
        assert.deepStrictEqual(message.body, back === undefined ? sent : back);
        for (const field of Object.keys(header)) assert.deepStrictEqual(message[field], header[field], field);
        same.push(name);
    } catch (error) {
        console.error(`client: ${name}: ${error.message}`);
    }
    if (++came === names.length) connection.open_receiver({ source: { address: chosen, filter } });
});
for (const error of ["receiver_error", "sender_error", "connection_error", "rejected"]) {
    connection.on(error, () => {
        console.error(`client: ${error}`);
        process.exit(1);
    });
}
