"""Every bound of the broker, in one place.

Nothing that a client, a peer or an operator sends may make the broker grow without end: each thing that can grow has a bound
here, and what would pass it is refused with a text that names the bound. Sizes are in bytes and times in seconds, as the names
say. Where the sentence says "by default", a setting may change it.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

MAX_FRAME_BYTES = 64 * KIB
"""Largest AMQP frame that we announce by default; larger messages come in several frames."""

SESSION_WINDOW_BYTES = 16 * MIB
"""Incoming capacity of a session: proton counts its window in frames, and smaller ones were measured to halve the throughput."""

MAX_MESSAGE_BYTES = 101 * MIB
"""Largest encoded message by default: a body of 100 MiB, and what stands before it. It is announced on attach, and a larger one
is refused with amqp:link:message-size-exceeded.
"""

GATHERED_BYTES = 16 * MIB
"""Largest encoded message that is put together in memory: for termini that are no queues, and below machine version 3."""

UNFINISHED_BYTES = 4 * MIB
"""What a connection's unfinished messages may take of memory, the largest of them not counted, which has its own bound."""

UNFINISHED_SHARE = 4
"""The unfinished messages of all connections may take one in so many of the bytes that bodies may take (--message-memory), and
twice what those of one connection may take at least."""

SMALL_PART_BYTES = 16 * KIB
"""Above that, so much of a message that parts are taken of is taken at once, and not only a whole part."""

PART_BYTES = 256 * KIB
"""A large message is stored, read and sent by parts of this size."""

LARGE_PARTS = 5
"""A message of more than so many parts' bytes is a large one. Smaller ones are records of their own."""

MAX_CONNECTIONS = 10_000
"""Connections at a time by default; one more client is closed with amqp:resource-limit-exceeded. (Open files may set a lower
bound.)
"""

SPARE_CONNECTIONS = 64
"""Sockets beyond that, for administrators, other members, and telling clients that they are too many. More are closed at once."""

RESERVED_DESCRIPTORS = 256
"""Open files that no connection gets: those of the disk, of the links to other members, and of the process itself. A log has some
4 to 70 open, by how far its last checkpoint is back."""

MAX_HANDSHAKES = 128
"""Sockets that are in the midst of a TLS handshake: one more takes the place of the oldest."""

PROBE_CONNECTIONS = 64
"""Sockets of the admin port at a time; one more is closed at once."""

PROBE_HEADER_BYTES = 4096
"""Of a request's line and headers."""

PROBE_IDLE_S = 5.0
"""For which a socket of the admin port may be silent."""

SCRAPES = 2
"""Pages of metrics that are being written at the same time; who asks for one more is told to ask later."""

SCRAPE_S = 30.0
"""For which a page of metrics may be on its way to a reader."""

METRICS_QUEUES = 10_000
"""Queues that have series of their own among the metrics."""

MAX_SESSIONS_PER_CONNECTION = 256
"""Sessions of one connection: announced as channel-max of this minus one."""

MAX_LINKS_PER_CONNECTION = 4096
"""Links of one connection over all its sessions; one more is detached with amqp:resource-limit-exceeded. A session has no bound
of its own: proton announces its own handle-max, which cannot be set."""

MAX_DUPLICATE_IDS = 200_000
"""Ids of messages in the window of a queue that detects duplicates; each takes about 150 bytes."""

MAX_TRANSACTIONS_PER_CONNECTION = 100
"""Transactions that a connection may have open."""

MAX_TRANSACTION_OPERATIONS = 10_000
"""Messages that are sent and outcomes that are given in one transaction."""

MAX_TRANSACTION_BYTES = 16 * MIB
"""The messages of one transaction: they go into one batch of the log."""

TRANSACTIONS_BYTES = 64 * MIB
"""The messages of all transactions that are open on a broker, which are in its memory."""

CREDIT_WINDOW = 1000
"""Messages that a producer's link may send ahead of our settling them."""

MAX_UNSETTLED_PER_LINK = 5000
"""Deliveries to one consumer that it has not settled: no more are sent, whatever its credit."""

MAX_AUTO_DELETE_S = 10 * 366 * 24 * 3600
"""The longest `qpid.auto_delete_timeout`: ten years. More is refused."""

MAX_DELIVERY_LIMIT = 100_000
"""The highest `x-delivery-limit`. More is refused."""

MAX_MESSAGE_TTL_MS = 10 * 366 * 24 * 3600 * 1000
"""The longest `x-message-ttl`: ten years. More is refused."""

SASL_FRAME_BYTES = 512
"""Largest frame of the SASL layer: AMQP's own MIN-MAX-FRAME-SIZE (part 5.3.1)."""

TOKEN_FRAME_BYTES = 4 * KIB
"""The same where tokens are taken (`--token-keys`): those of most issuers have one or two thousand bytes."""

TOKEN_MESSAGE_BYTES = 16 * KIB
"""Largest message that puts a token to the node `$cbs`."""

MAX_TOKEN_KEYS = 100
"""Keys by which tokens are looked at."""

MAX_TOKEN_KEYS_BYTES = 256 * KIB
"""The file, or the answer of the server, that has them."""

TOKEN_KEYS_TIMEOUT_S = 10.0
"""How long that server may take to answer."""

TOKEN_LEEWAY_S = 60.0
"""How far the clocks of a token's issuer and of this broker may be apart."""

MAX_USERS = 100_000
"""Users in a users' file."""

MAX_USERS_BYTES = 64 * MIB
"""A users' file."""

MAX_ITERATIONS = 1_000_000
"""Iterations of a user's keys: a password is looked at for about a second with so many."""

LOGINS_AT_ONCE = 2
"""Passwords that are looked at at the same time, each in a thread. Others wait for their turn."""

LOGINS_WAITING = 4096
"""Logins that wait for their turn or their time; one more is refused."""

LOGIN_DELAY_S = 2.0
"""The longest that a login is put off because others from its host, or as its user, have failed."""

LOGIN_TRIES_AT_ONCE = 64
"""Logins from one host, some of which have failed, that may be on their way to success at a time."""

LOGIN_TRIES_A_S = 20.0
"""Logins a second of such a host that come to nothing."""

LOGIN_FORGET_S = 300.0
"""After so long without another one failed logins are forgotten."""

LOGIN_ENTRIES = 20_000
"""Hosts and users whose failed logins are remembered."""

STRANGERS_SHARE = 4
"""One in so many of the connections served at most, and `FEW_STRANGERS` at least, may be there without a login where logins are
demanded; half of them from one host. More are closed at once."""

FEW_STRANGERS = 64
"""See `STRANGERS_SHARE`."""

EARLY_FRAME_BYTES = 4 * KIB
"""Largest frame before a connection's Open is admitted."""

EARLY_BYTES = 64 * KIB
"""All frames of a connection before its Open is admitted, which may take as long as a new primary needs: Begins and Attaches."""

PERFORMATIVE_BYTES = 16 * KIB
"""Largest performative but a transfer's, without the map of unsettled deliveries that an attach may have and nobody reads."""

TRANSFER_HEAD_BYTES = 512
"""Largest performative of a transfer: what stands before its piece of a message."""

PERFORMATIVE_VALUES = 1024
"""Values in a performative: each becomes an object of some hundred bytes for whoever decodes it."""

PERFORMATIVE_MAP_BYTES = 8 * KIB
"""Largest map in a performative: properties, filters, the info of an error, annotations."""

MAX_WALK_DEPTH = 64
"""Lists, maps, arrays and descriptors within one another in a performative: proton decodes them by recursion."""

ATTACHED_BYTES = 8 * MIB
"""The attaches of one connection whose links have not ended: their names, addresses, properties and filters are kept."""

QUIET_SHARE = 10
"""When consumers have settled nothing for one part in so many of the time that they have before another broker takes over as
planned, they have settled what they will."""

QUIET_LOOK_S = 0.005
"""How often that is looked at."""

OPEN_TIMEOUT_S = 10.0
"""How long a new connection may take by default from the TCP handshake to the AMQP Open before it is dropped."""

IDLE_TIMEOUT_S = 60.0
"""Idle time-out that we announce by default; a connection silent for longer is taken to be dead."""

PIECE_BYTES = 256 * KIB
"""A larger message goes to proton by pieces of this size, as its connection's socket takes them."""

MAX_OUTPUT_BYTES = 1 * MIB
"""Encoded bytes that may wait for a slow client's socket before its links are given no more messages."""

MAX_SENT_BYTES = 4 * MIB
"""The same for all links of a connection together."""

LARGE_AT_ONCE = 16
"""Large messages that go out at a time on the links of one connection: of each, up to a MiB is read ahead."""

BATCH_TARGET_BYTES = 1 * MIB
"""A batch with this much payload is sealed, and the rest of the turn goes into the next one; with less while the log is slow (see
broker.core.pace)."""

MAX_BATCH_BYTES = 64 * MIB
"""No batch is larger, and one that says it is, is taken to be damaged: the largest message and its company must fit."""

INFLOW_BYTES = 32 * MIB
"""Messages that clients have sent and that are not committed yet, in bytes: above it, connections that bring more are not read
until half of it is left.
"""

PARTS_INFLOW_BYTES = 4 * MIB
"""The same for connections that bring parts of large messages."""

MAX_QUEUES = 50_000
"""Queues of one broker, exclusive and temporary ones included."""

MAX_EXCHANGES = 10_000
"""Exchanges of one broker."""

MAX_BINDINGS_PER_EXCHANGE = 100_000
"""Bindings of one exchange."""

MAX_BINDING_ARGUMENTS = 64
"""Arguments of one binding: a headers exchange compares each of them with each message."""

MAX_NAME_BYTES = 255
"""UTF-8 bytes of a name (queue, exchange, container, link) or of a binding key: what AMQP 0-10 allows, and so Qpid's tools."""

MAX_SUBJECT_CHARS = 1024
"""Characters of a subject that topic patterns are compared with; a longer one is matched by "#" alone, and its route not kept."""

MAX_QUEUE_BYTES = 1024 * MIB
"""Encoded messages of one queue, by default (queue argument max-bytes): above it its policy decides, refuse or evict."""

MAX_LAST_VALUES = 250_000
"""Messages of a last value queue: the primary keeps the digest of each one's key in memory, some 150 bytes."""

MAX_GROUPS_WAITING = 100_000
"""Messages of a queue of groups that wait for a group which another consumer has: behind so many nothing is looked at."""

MAX_GROUP_OWNERS = 100_000
"""Groups of one queue that stay with their consumers while these hold none of their messages."""

MESSAGE_MEMORY_BYTES = 1024 * MIB
"""Bodies of messages in memory, by default where the memory of the machine is unknown (--message-memory)."""

READ_AHEAD_BYTES = 2 * MIB
"""Bodies of one queue that are read back from disk ahead of its consumers; less when many queues read at once."""

MIN_READ_AHEAD_BYTES = 64 * KIB
"""The least that is read at once, however many queues read."""

READS_AT_ONCE = 4
"""Queues of one broker for which bodies are being read at a time; others wait for their turn."""

MAX_CONSUMERS_PER_QUEUE = 10_000
"""Consumers and browsers of one queue."""

MAX_TURN_MESSAGES = 256
"""Messages given to one consumer before the next one has its turn."""

MAX_TURN_LETTERS = 64
"""Dead letters that a queue sends in one turn of the reactor."""

MAX_HELD_BACK = 2048
"""Messages of a queue that are looked at in one turn, and that nobody may have now: expired ones, and delayed ones."""

MAX_TURN_BYTES = 1 * MIB
"""Bytes given to one consumer before the next one has its turn."""

PLAIN_OPEN_BYTES = 384
"""No more does our Open take without the list of the other brokers, which is left out where a client's frames are too small."""

MAX_AMQP_DEPTH = 32
"""Lists, maps, arrays and descriptors within one another in the sections of a message that the broker reads."""

MAX_AMQP_ITEMS = 65_536
"""Values in one section that the broker decodes: an AMQP array may claim four thousand million elements in ten bytes."""

MAX_REQUEST_BYTES = 1 * MIB
"""Body of a management request."""

MANAGEMENT_WINDOW = 32
"""Management requests that a link may send ahead of their answers."""

MANAGEMENT_TURN_S = 0.0005
"""Time that management may take of one turn of the reactor before everything else has its own; some work is always done."""

MANAGEMENT_WAITING_BYTES = 16 * MIB
"""Management requests that wait for their turn, over all connections; one more is rejected."""

SHARE_TURN_S = 0.0005
"""Time that connections which are not open yet, and links that come and go, may take of one turn of the reactor; some work is
always done."""

BUSY_S = 0.05
"""So long after a batch of messages the broker is busy with messages: floods have less of its time."""

BUSY_SHARE = 0.4
"""What is left then of what management, strangers, and links that come and go, may take of one turn."""

BUSY_REST = 2
"""So many of what they may take otherwise is the time that others have after it then."""

ADMIT_TURN_S = 0.005
"""Time of one turn of the reactor that a new primary takes to answer the Opens that have waited for it."""

LINKS_AT_ONCE = 16
"""Begins, attaches, detaches and ends of one connection that are looked at at once."""

ACCEPTS_AT_ONCE = 4
"""Sockets that are accepted at once; the others wait in the kernel."""

ACCEPT_PAUSE_S = 0.002
"""Time that the others wait at least, while there are so many, at a port whose sockets have no share of a turn."""

STRANGER_READ_BYTES = 8 * KIB
"""What is read at a time from a connection that is not open yet."""

PAGE_ITEMS = 1000
"""Items in one answer to a query: more are asked for page by page."""

PAGE_BYTES = 256 * KIB
"""Encoded items in one answer, but for the last of them."""

MAX_ROUTES_CACHED = 4096
"""Subjects whose routes an exchange remembers."""

MAX_URL_BYTES = 8 * KIB
"""A broker URL, addresses and credentials together."""

MAX_URL_ADDRESSES = 64
"""Addresses in a broker URL."""

FLOW_STOP_RATIO = 0.8
"""A queue fuller than this part of its limits gives its producers no more credit."""

FLOW_RESUME_RATIO = 0.7
"""A queue that has become emptier than this part of its limits gives them credit again."""

MAILBOX_MESSAGES = 10_000
"""Answers that wait on a dynamic source for a client that gives no credit; the oldest go first."""

MAILBOX_BYTES = 16 * MIB
"""The same in bytes."""

MAILBOXES_BYTES = 64 * MIB
"""Answers that wait on all dynamic sources; the oldest of the fullest go first."""

MAX_SETTINGS = 64
"""What a cluster agrees on: a few facts, and tags for each member."""
MAX_ORIGINS = MAX_QUEUES
"""Queues of other stores whose messages may come to one log of this broker, over all drains."""
MAX_HELD_RUNS = 1 << 20
"""Runs of sequences that one log remembers of all origins: 16 bytes each. A queue that is moved in order without gaps has one
for each level of priority."""
MAX_RELEASED = 1000
"""Drains that have ended, and whose stores have not heard of it."""
MAX_ROUTES = 1000
"""Routes of one cluster."""
MAX_POLICIES = 1000
"""Policies of one log. Each is looked at when a queue or an exchange is made."""
MAX_ROUTE_HOPS = 16
"""Clusters that a message may have come through before a route takes it no further."""
MAX_NOTE_BYTES = 1024
"""What consumers may note on a message by the annotations of `modified`, encoded."""
MAX_INITIAL_VALUE_BYTES = 64 * 1024
"""A message that an exchange keeps for queues that are bound to it next. It is in the log once more, and in each checkpoint."""
MAX_KEEPING_EXCHANGES = 256
"""Exchanges of one broker that keep the last message: each has it in memory, on every broker."""
MAX_NOTES = 10_000
"""Messages of a queue that have such a note; on more nothing is noted."""
MAX_CONSUMER_MS = 30 * 86_400_000
"""The longest time that a queue may give consumers for a message."""
MAX_NUMBERED_LINKS = 10_000
"""Sending links with numbered messages that one log remembers."""
MAX_LINK_RUNS = 1000
"""Runs of numbers that one such link may have, 16 bytes each: what was not taken leaves gaps until it comes again."""
LINK_KEPT_S = 86_400
"""For so long they are remembered when their clients say nothing else."""
MAX_LINK_KEPT_S = 30 * 86_400
"""And for so long at most."""
HELD_SHOWN = 100
"""Runs of numbers that the answer to the attach of such a link has."""
MAX_HISTORY = 100
"""Terms of primaries that a cluster remembers."""

MAX_SELECTOR_CHARS = 8192
"""Characters of a selector."""

MAX_SELECTOR_DEPTH = 64
"""Operators of a selector within one another; a chain of ANDs or ORs is one."""

MAX_FILTER_FIELDS = 16
"""Names in a filter of properties."""

BULK_LOOKS = 256
"""Messages of one queue at which a request to purge, move or reroute looks in one go."""

BULK_READS = 64
"""The same, where it must know what the messages say."""

BULK_S = 1.0
"""After so long such a request is answered, with where the next one goes on."""

SELECTOR_LOOKS = 128
"""Messages of one queue that consumers with selectors look at in one go."""

MAX_SELECTOR_SECTION_BYTES = 64 * KIB
"""Header, properties or application properties that a selector looks at: a message with a longer one matches nothing."""
