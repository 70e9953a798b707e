// A client on rhea with a durable subscription and a temporary queue:  node subscribe.js HOST:PORT TOPIC
//
// It subscribes, detaches, publishes three messages, comes back for them, unsubscribes by a link without a source as JMS clients do,
// and finds nothing under the name then. Another message goes through a temporary queue. What came is printed as JSON.
"use strict";
const rhea = require("rhea");

const [address, topic] = process.argv.slice(2);
const [host, port] = address.split(":");
const SOURCE = { address: topic, durable: 2, expiry_policy: "never", capabilities: ["topic", "shared", "global"] };
const LINK = "news|global";
const got = { back: [], found: "", missing: "", temporary: [] };
const connection = rhea.connect({ host, port: Number(port), reconnect: false, container_id: "rhea-subscriber" });
const once = (link, event) => new Promise((then) => link.once(event, then));
const asked = () => connection.open_receiver({ name: LINK, desired_capabilities: ["shared", "global"], credit_window: 0 });

async function sent(target, bodies) {
    const sender = connection.open_sender({ target });
    await once(sender, "sendable");
    for (const body of bodies) {
        sender.send({ body });
        await once(sender, "accepted");
    }
    return sender;
}

async function work() {
    let receiver = connection.open_receiver({ name: LINK, source: SOURCE, credit_window: 0 });
    await once(receiver, "receiver_open");
    receiver.detach();
    await once(receiver, "receiver_close");
    await sent(topic, [1, 2, 3]);

    receiver = connection.open_receiver({ name: LINK, source: SOURCE });
    await new Promise((then) => receiver.on("message", (context) => got.back.push(context.message.body) === 3 && then()));
    receiver.detach();
    await once(receiver, "receiver_close");

    receiver = asked();
    await once(receiver, "receiver_open");
    got.found = receiver.source.address;
    receiver.close();
    await once(receiver, "receiver_close");
    receiver = asked();
    await once(receiver, "receiver_error");
    got.missing = receiver.error.condition;

    const lifetime = rhea.types.described_nc(rhea.types.wrap_ulong(0x2b), rhea.types.wrap_list([]));
    const target = { dynamic: true, capabilities: ["temporary-queue"], dynamic_node_properties: { "lifetime-policy": lifetime } };
    const maker = connection.open_sender({ target });
    await once(maker, "sender_open");
    receiver = connection.open_receiver({ source: { address: maker.target.address, capabilities: ["temporary-queue"] } });
    const came = once(receiver, "message");
    await sent(maker.target.address, ["for a time"]);
    got.temporary.push((await came).message.body);
    console.log(JSON.stringify(got));
    connection.close();
}

connection.on("connection_open", () => work().catch((error) => { console.error(`client: ${error}`); process.exit(1); }));
connection.on("receiver_error", () => {});
connection.on("disconnected", (context) => {
    if (context.connection.is_closed()) return;
    console.error("client: disconnected");
    process.exit(1);
});
