"""All limits of the broker.

Input from clients, peers and operators must not make the broker grow without end. Each thing that can grow has a limit here.
Input above a limit is refused with a text that names the limit. The names give the unit: bytes or seconds. "By default" means
that a setting can change the limit.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

MAX_FRAME_BYTES = 64 * KIB
"""Largest AMQP frame that we announce by default; larger messages come in several frames."""

SESSION_WINDOW_BYTES = 16 * MIB
"""Incoming capacity of a session. Proton counts its window in frames; smaller windows halved the throughput in a measurement."""

MAX_MESSAGE_BYTES = 101 * MIB
"""Largest encoded message by default: a body of 100 MiB and the sections before it. It is announced on attach, and a larger
message is refused with amqp:link:message-size-exceeded.
"""

GATHERED_BYTES = 16 * MIB
"""Largest encoded message that is collected in memory: for termini that are not queues, and below machine version 3."""

GATHER_BYTES = 64 * KIB
"""More than this of a message that is not complete is taken out of proton. It would keep the memory of the largest message for
each delivery, and moves bytes faster while they are in the processor's cache."""

UNFINISHED_BYTES = 4 * MIB
"""Memory for the unfinished messages of one connection. The largest one is not counted, because its link limits it."""

UNFINISHED_SHARE = 4
"""The unfinished messages of all connections may take the memory for bodies (--message-memory) divided by this, but at least
twice UNFINISHED_BYTES."""

SMALL_PART_BYTES = 16 * KIB
"""When unfinished messages exceed their limit, pieces of this size or more are taken from a message, not only whole parts."""

PART_BYTES = 256 * KIB
"""A large message is stored, read and sent by parts of this size."""

LARGE_PARTS = 5
"""A message larger than this number of parts is a large message. A smaller message is one record."""

UPLOAD_SILENT_S = 10.0
"""An incomplete large message of which nothing has come for this time is dropped when another one needs its room on a queue."""

MAX_CONNECTIONS = 10_000
"""Simultaneous connections by default; one more client is closed with amqp:resource-limit-exceeded. (The limit of open files may
be lower.)
"""

SPARE_CONNECTIONS = 64
"""Additional sockets for administrators, other members, and clients that get the answer that there are too many. More are closed
at once."""

RESERVED_DESCRIPTORS = 256
"""Open files that are reserved for the disk, the links to other members, and the process itself. A log has some 4 to 70 open
files, depending on the age of its last checkpoint."""

MAX_HANDSHAKES = 128
"""Sockets in a TLS handshake: one more replaces the oldest."""

PROBE_CONNECTIONS = 64
"""Simultaneous sockets of the admin port; one more is closed at once."""

PROBE_HEADER_BYTES = 4096
"""Bytes of a request's line and headers on the admin port."""

PROBE_IDLE_S = 5.0
"""Seconds for which a socket of the admin port may be silent."""

SCRAPES = 2
"""Pages of metrics that are written at the same time; one more request gets the answer to try later."""

SCRAPE_S = 30.0
"""Seconds that a reader may take to receive a page of metrics."""

METRICS_QUEUES = 10_000
"""Queues with their own series in the metrics."""

MAX_SESSIONS_PER_CONNECTION = 256
"""Sessions of one connection: announced as channel-max of this minus one."""

MAX_LINKS_PER_CONNECTION = 4096
"""Links of one connection in all its sessions; one more is detached with amqp:resource-limit-exceeded. A session has no limit of
its own, because proton announces a handle-max that cannot be set."""

MAX_DUPLICATE_IDS = 200_000
"""Ids of messages in the window of a queue that detects duplicates; each takes about 150 bytes."""

MAX_TRANSACTIONS_PER_CONNECTION = 100
"""Open transactions of one connection."""

MAX_TRANSACTION_OPERATIONS = 10_000
"""Messages and outcomes in one transaction."""

MAX_TRANSACTION_BYTES = 16 * MIB
"""Bytes of the messages of one transaction, which go into one batch of the log."""

TRANSACTIONS_BYTES = 64 * MIB
"""Bytes that the messages of all open transactions of a broker take in its memory."""

TRANSACTION_MESSAGE_BYTES = 144
"""Bytes that each of them takes besides its own."""

CREDIT_WINDOW = 1000
"""Messages that a producer's link may send before earlier ones are settled."""

RELEASED_PAUSE_S = 0.5
"""After which a link without an address, at the latest, gets the credit of a released message back: some clients send such a
message again at once."""

MAX_UNSETTLED_PER_LINK = 5000
"""Unsettled deliveries to one consumer: no more are sent, whatever its credit is."""

MAX_UNSETTLED_PER_CONNECTION = 100_000
"""Unsettled deliveries to all consumers and browsers of one connection: each takes 730 bytes in memory. Half of it is there for
any link, and of the other half each possible link has an equal share."""

MAX_AUTO_DELETE_S = 10 * 366 * 24 * 3600
"""The longest `qpid.auto_delete_timeout`: ten years. More is refused."""

MAX_DELIVERY_LIMIT = 100_000
"""The highest `x-delivery-limit`. More is refused."""

MAX_MESSAGE_TTL_MS = 10 * 366 * 24 * 3600 * 1000
"""The longest `x-message-ttl`: ten years. More is refused."""

SASL_FRAME_BYTES = 512
"""Largest frame of the SASL layer: AMQP's own MIN-MAX-FRAME-SIZE (part 5.3.1)."""

MAX_PASSWORD_CHARS = 1024
"""Characters of a password."""

TOKEN_FRAME_BYTES = 4 * KIB
"""The same where tokens are accepted (`--token-keys`): tokens of most issuers have one or two thousand bytes."""

TOKEN_MESSAGE_BYTES = 16 * KIB
"""Largest message to the node `$cbs`, which contains a token."""

MAX_TOKEN_KEYS = 100
"""Keys for verifying tokens."""

MAX_TOKEN_KEYS_BYTES = 256 * KIB
"""Bytes of the file or server's answer with these keys."""

TOKEN_KEYS_TIMEOUT_S = 10.0
"""How long that server may take to answer."""

TOKEN_LEEWAY_S = 60.0
"""Allowed difference between the clocks of a token's issuer and this broker."""

MAX_USERS = 100_000
"""Users in a users' file."""

MAX_USERS_BYTES = 64 * MIB
"""Bytes of a users' file."""

MAX_ITERATIONS = 1_000_000
"""Iterations of a user's keys: with this number, verifying a password takes about a second."""

LOGINS_AT_ONCE = 2
"""Passwords that are verified at the same time, each in a thread. Others wait for their turn."""

LOGINS_WAITING = 4096
"""Logins that wait for a thread or for the end of a delay; one more is refused."""

LOGIN_DELAY_S = 2.0
"""The longest delay of a login because other logins from its host, or of its user, have failed."""

LOGIN_TRIES_AT_ONCE = 64
"""Simultaneous logins from one host from which some logins have failed."""

LOGIN_TRIES_A_S = 20.0
"""Failed logins a second of such a host."""

LOGIN_FORGET_S = 300.0
"""Failed logins are forgotten after this time without another failure."""

LOGIN_ENTRIES = 20_000
"""Hosts and users whose failed logins are remembered."""

STRANGERS_SHARE = 4
"""Where logins are required, the number of connections without a login is limited to the maximum number of connections divided by
this, but at least `FEW_STRANGERS`. At most half of them may be from one host. More are closed at once."""

FEW_STRANGERS = 64
"""See `STRANGERS_SHARE`."""

EARLY_FRAME_BYTES = 4 * KIB
"""Largest frame before a connection's Open is admitted."""

EARLY_BYTES = 64 * KIB
"""Bytes of all frames of a connection before its Open is admitted (with Begins and Attaches). A new primary may admit it late."""

PERFORMATIVE_BYTES = 16 * KIB
"""Largest performative except a transfer, without the map of unsettled deliveries in an attach, which is not read."""

TRANSFER_HEAD_BYTES = 512
"""Largest performative of a transfer, without its piece of the message."""

PERFORMATIVE_VALUES = 1024
"""Values in a performative: each becomes an object of some hundred bytes when it is decoded."""

PERFORMATIVE_MAP_BYTES = 12 * KIB
"""Bytes of the largest map in a performative: properties, filters, the info of an error, annotations. A selector of
`MAX_SELECTOR_CHARS`, and one that is somewhat longer, must fit in, so that it is answered on its link."""

MAX_WALK_DEPTH = 64
"""Nesting of lists, maps, arrays and descriptors in a performative: proton decodes them by recursion."""

ATTACHED_BYTES = 16 * MIB
"""Bytes of the attaches of one connection's links that the client has not detached: their names, addresses, properties and
filters are kept in memory. Each counts with LINK_BYTES more."""

LINK_BYTES = 1536
"""Bytes that a link takes in memory besides, also if it was refused: proton has it until the client detaches it."""

NAMED_AT_ONCE = 20_000
"""Deliveries that the dispositions of one connection name, before the rest of its input waits for a later turn: proton makes an
event of 160 bytes for each of them, each time that it is named."""

NAMED_IN_VAIN = 100_000
"""How often the dispositions of one connection may name deliveries without a new outcome, in addition to NAMED_AGAIN for each of
its messages."""

NAMED_AGAIN = 4
"""See NAMED_IN_VAIN."""

QUIET_SHARE = 10
"""In a planned switchover: when consumers have settled nothing for their time limit divided by this, the broker does not wait
longer."""

QUIET_LOOK_S = 0.005
"""Interval of this check."""

OPEN_TIMEOUT_S = 10.0
"""How long a new connection may take by default from the TCP handshake to the AMQP Open before it is dropped."""

IDLE_TIMEOUT_S = 60.0
"""Idle time-out that we announce by default; a connection that is silent for longer is closed."""

TICK_S = 1.0
"""How often all connections are looked at: this is often enough for the heartbeats of most of them."""
LEAST_BEAT_S = 0.1
"""No peer gets heartbeats more often than at this interval, however short a silence it bears."""

TICK_TURN_S = 0.005
"""Seconds of one turn of the reactor in which connections get this look."""

PIECE_BYTES = 256 * KIB
"""A larger message is passed to proton in pieces of this size, as fast as the socket accepts them."""

MAX_OUTPUT_BYTES = 1 * MIB
"""Encoded bytes that may wait for a client's socket; above it, its links get no more messages."""

MAX_SENT_BYTES = 4 * MIB
"""The same for all links of a connection together."""

LARGE_AT_ONCE = 16
"""Large messages that are sent at the same time on one connection: for each, up to 1 MiB is read ahead."""

BATCH_TARGET_BYTES = 1 * MIB
"""Payload at which a batch is sealed and the rest of the turn goes into the next one. While the log is slow, this happens earlier
(see broker.core.pace)."""

MAX_BATCH_BYTES = 64 * MIB
"""Largest batch, about. A transaction with more, in all the queues that get it, is refused. If one dead letter, or one rerouted
message, has more in all the queues that get it, it goes into several batches."""

BATCH_COPY_BYTES = 32
"""What each message of a batch takes beside its bytes, its length and its times; rounded up."""

INFLOW_BYTES = 32 * MIB
"""Bytes of messages from clients that are not committed yet. Above it, connections that send messages are not read until half of
it is left.
"""

PARTS_INFLOW_BYTES = 4 * MIB
"""The same for connections that send parts of large messages."""

LETTERS_INFLOW_BYTES = 4 * MIB
"""Bytes of dead letters in one log that are not committed yet. Above it, queues send no more until some of them are."""

MAX_QUEUES = 50_000
"""Queues of one broker, exclusive and temporary ones included."""

MAX_EXCHANGES = 10_000
"""Exchanges of one broker."""

MAX_BINDINGS_PER_EXCHANGE = 100_000
"""Bindings of one exchange."""

MAX_BINDING_ARGUMENTS = 64
"""Arguments of one binding: a headers exchange compares each of them with every message."""

MAX_NAME_BYTES = 255
"""UTF-8 bytes of a name (queue, exchange, container, link) or of a binding key: the limit of AMQP 0-10, and so of Qpid's
tools."""

MAX_TOLD_CHARS = 255
"""Characters of a name that a client chooses for its process, its container or its link, in answers of management and in events.
A longer one ends with "..." there."""

MAX_SUBJECT_CHARS = 1024
"""Characters of a subject that is compared with topic patterns. A longer subject matches only "#", and its route is not
cached."""

MAX_QUEUE_BYTES = 1024 * MIB
"""Bytes of the encoded messages of one queue by default (queue argument max-bytes). Above it, the queue's policy is to refuse or
to evict."""

MAX_LAST_VALUES = 250_000
"""Messages of a last value queue: for each, the primary keeps a digest of its key in memory, some 150 bytes."""

MAX_GROUPS_WAITING = 100_000
"""Messages of a queue of groups that wait because another consumer has their group. Messages behind these are not examined."""

MAX_GROUP_LOOKS = 2048
"""Messages of a queue of groups that are examined in one turn of the reactor for consumers that have none."""

MAX_GROUP_OWNERS = 100_000
"""Groups of one queue that stay assigned to consumers that have none of their messages; also the groups of one queue of which the
log knows the owners."""

GROUPS_FREED_AT_ONCE = 2048
"""Groups of one queue that become free in one turn of the reactor because their owners have left."""

MAX_OWNERS = 10_000
"""Owners of groups of one queue; a consumer that would be one more cannot attach."""

MAX_OWNER_S = 86_400
"""The longest time, in seconds, that a queue may give an owner of groups to come back."""

MAX_OWNER_CHARS = 256
"""Characters of each name of an owner of groups: user, container id, and name of the link."""

MESSAGE_MEMORY_BYTES = 1024 * MIB
"""Bytes of message bodies in memory, by default if the memory of the machine is unknown (--message-memory)."""

READ_AHEAD_BYTES = 2 * MIB
"""Bodies of one queue that are read back from disk ahead of its consumers; less when many queues read at once."""

MIN_READ_AHEAD_BYTES = 64 * KIB
"""The smallest read-ahead of a queue, however many queues read."""

READS_AT_ONCE = 4
"""Queues for which bodies are read at the same time; others wait for their turn."""

MAX_CONSUMERS_PER_QUEUE = 10_000
"""Consumers and browsers of one queue."""

MAX_TURN_MESSAGES = 256
"""Messages that one consumer gets before the next one has its turn."""

MAX_TURN_LETTERS = 64
"""Dead letters that a queue sends in one turn of the reactor."""

MAX_LETTERS_WAITING = 10_000
"""Dead letters of a queue of which each has its entry in memory while they wait. Of expired messages behind these, only the runs
of their sequences are in memory."""

MAX_HELD_BACK = 2048
"""Messages of a queue that are examined in one turn and cannot be delivered now: expired and delayed ones."""

MAX_TURN_BYTES = 1 * MIB
"""Bytes that one consumer gets before the next one has its turn."""

PLAIN_OPEN_BYTES = 384
"""Maximum size of our Open without the list of the other brokers. The list is left out if a client's frames are too small."""

MAX_AMQP_DEPTH = 32
"""Nesting of lists, maps, arrays and descriptors in the sections of a message that the broker reads."""

MAX_AMQP_ITEMS = 65_536
"""Values in one section that the broker decodes: ten bytes of an AMQP array can claim four thousand million elements."""

MAX_OTHER_KEYS = 512
"""Keys of maps that are neither text nor binary, and the values that such keys consist of, in one section that the broker
decodes: keys with the same hash, which a client can choose, are all compared with each other. A note (`MAX_NOTE_BYTES`) has
fewer."""

MAX_REQUEST_BYTES = 1 * MIB
"""Bytes of a management request's body."""

MAX_CONDITION_BYTES = 380
"""Bytes of the text and the fields of an error condition. With the rest of its frame they fit into 512 bytes, the smallest
max-frame-size that a peer may announce."""

MAX_ATTRIBUTE_NAMES = 100
"""Attributes that a query by AMQP Management may name, each once: every row of its answer has a value for each."""

MANAGEMENT_WINDOW = 32
"""Management requests that a link may send before earlier ones are answered."""

MANAGEMENT_TURN_S = 0.0005
"""Seconds that management may take of one turn of the reactor; at least one piece of work is always done."""

MANAGEMENT_WAITING_BYTES = 16 * MIB
"""Bytes of management requests of all connections that wait for their turn; above it, requests are rejected."""

SHARE_TURN_S = 0.0005
"""Seconds that connections before their Open, and begins, attaches, detaches, ends and requests for a state (`echo`), may take of
one turn of the reactor; at least one piece of work is always done."""

BUSY_S = 0.05
"""For this time after a batch of messages, the broker counts as busy with messages, and floods get less time."""

BUSY_SHARE = 0.4
"""While it is busy, MANAGEMENT_TURN_S and SHARE_TURN_S are multiplied by this."""

BUSY_REST = 2
"""While it is busy, other work gets MANAGEMENT_TURN_S or SHARE_TURN_S, multiplied by this, after each such turn."""

ADMIT_TURN_S = 0.005
"""Seconds of one turn of the reactor in which a new primary answers waiting Opens."""

LINKS_AT_ONCE = 16
"""Begins, attaches, detaches, ends, and requests for a state (`echo`) of one connection that are handled at once."""

ACCEPTS_AT_ONCE = 4
"""Sockets that are accepted at once; the others wait in the kernel."""

ACCEPT_PAUSE_S = 0.002
"""The shortest pause after accepting this many, at a port whose sockets have no share of a turn."""

STRANGER_READ_BYTES = 8 * KIB
"""Bytes of one read from a connection before its Open."""

PAGE_ITEMS = 1000
"""Items in one answer to a query: clients request more page by page."""

PAGE_BYTES = 256 * KIB
"""Bytes of the encoded items in one answer; the last item may exceed it."""

MAX_ROUTES_CACHED = 4096
"""Subjects whose routes an exchange caches."""

MAX_URL_BYTES = 8 * KIB
"""Bytes of a broker URL with addresses and credentials."""

MAX_URL_ADDRESSES = 64
"""Addresses in a broker URL."""

FLOW_STOP_RATIO = 0.8
"""A queue that is filled above this part of its limits gives its producers no more credit."""

FLOW_RESUME_RATIO = 0.7
"""A queue that is filled below this part of its limits gives them credit again."""

MAILBOX_MESSAGES = 10_000
"""Answers on a dynamic source that wait for a client's credit. Above it, the oldest are dropped."""

MAILBOX_BYTES = 16 * MIB
"""The same in bytes."""

MAILBOX_MESSAGE_BYTES = 64
"""Bytes that each of them takes in memory besides its own."""

MAILBOXES_BYTES = 64 * MIB
"""Bytes of waiting answers on all dynamic sources. Above it, the oldest in one of the fullest are dropped: none has
twice as much as this one."""

MAX_SETTINGS = 64
"""Settings of a cluster: a few facts, and the tags of each member."""
MAX_ORIGINS = MAX_QUEUES
"""Queues of other stores whose messages one log of this broker may accept, of all drains together."""
MAX_HELD_RUNS = 1 << 20
"""Runs of sequences of all origins that one log remembers, 16 bytes each. A queue that is moved in order and without gaps has one
run for each level of priority."""
MAX_RELEASED = 1000
"""Drains that have ended and are not forgotten yet."""
MAX_ROUTES = 1000
"""Routes of one cluster."""
MAX_ROUTE_BINDINGS = 10_000
"""Bindings that one dynamic route has at its source. Those that were made last are left out."""
MAX_BINDING_ORIGINS = 64
"""Clusters whose wish for the same messages a dynamic route tells its source; those with the longest paths are left out."""
MAX_ROUTE_ARGUMENTS_BYTES = 64 * KIB
"""Arguments, as a text, of a binding of a headers exchange that a dynamic route propagates. With the paths they fit into one
request to its source."""
MAX_ROUTE_ARGUMENTS_DEPTH = 24
"""Nesting of lists and maps in them. The source's answer has more of them around the arguments, and is read to MAX_AMQP_DEPTH."""
BINDINGS_AT_ONCE = 16
"""Requests for bindings that a dynamic route sends to its source before the first one is answered."""
BINDINGS_COMPARED = 100
"""Bindings that a dynamic route compares with those at its source in one turn of the reactor; also those that it asks for in one
request."""
BINDINGS_READ = 500
"""Bindings of an exchange here that are read for its dynamic routes in one turn of the reactor, or fewer, if they take
SHARE_TURN_S."""
MAX_POLICIES = 1000
"""Policies of one log. All are compared when a queue or an exchange is created."""
MAX_ROUTE_HOPS = 16
"""Clusters that a message may have passed through; a route does not pass it on after this."""
MAX_NOTE_BYTES = 1024
"""Encoded bytes of the annotations that consumers may add to a message by `modified`."""
MAX_INITIAL_VALUE_BYTES = 64 * 1024
"""Bytes of the last message that an exchange keeps for new bindings. It is in the log a second time, and in each checkpoint."""
MAX_KEEPING_EXCHANGES = 256
"""Exchanges of one broker that keep the last message. Every broker has these messages in memory."""
MAX_NOTES = 10_000
"""Messages of a queue that have such annotations; further ones are ignored."""
MAX_CONSUMER_MS = 30 * 86_400_000
"""The longest time, in ms, that a queue may give consumers for a message."""
MAX_NUMBERED_LINKS = 10_000
"""Sending links with numbered messages that one log remembers."""
MAX_LINK_RUNS = 1000
"""Runs of numbers that one such link may have, 16 bytes each: messages that were not accepted leave gaps until they are sent
again."""
LINK_KEPT_S = 86_400
"""Seconds for which they are remembered, if their clients request no other time."""
MAX_LINK_KEPT_S = 30 * 86_400
"""The longest time that a client may request."""
HELD_SHOWN = 100
"""Runs of numbers in the answer to the attach of such a link."""
MAX_HISTORY = 100
"""Terms of primaries that a cluster remembers."""

MAX_SELECTOR_CHARS = 8192
"""Characters of a selector."""

MAX_SELECTOR_DEPTH = 64
"""Nesting of a selector's operators; a chain of ANDs or ORs counts as one."""

MAX_SELECTOR_SEARCHES = 64
"""Parts of a selector's patterns between two `%`, which are searched for in a text."""

MAX_SELECTOR_WILD_SEARCHES = 8
"""Those of them that contain `_`."""

MAX_WILD_SEARCHED_CHARS = 1024
"""Characters of a text in which a part with `_` is searched for: a message with a longer one matches nothing."""

MAX_FILTER_FIELDS = 16
"""Names in a filter of properties."""

BULK_LOOKS = 256
"""Messages of one queue that a request to purge, move or reroute examines in one step."""

BULK_READS = 64
"""The same, if it must read the messages' bodies."""

BULK_S = 1.0
"""After this time such a request is answered, with the place where the next one continues."""

SELECTOR_LOOKS = 128
"""Messages of one queue that consumers with selectors look at in one go; fewer if their patterns are expensive."""

MAX_SELECTOR_SECTION_BYTES = 64 * KIB
"""Header, properties or application properties that a selector looks at: a message with a longer one matches nothing."""
