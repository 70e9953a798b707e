"""Options of Apache Qpid's qpidd (qpid-cpp 1.39) that this broker does not have, for existing configuration files of qpidd.

An option that only tunes the internals of qpidd, or its log, has no effect here: the file is accepted, and a line in the log file
names the ignored options. An option that would change what users get is refused, with what to do instead; so is every other
unknown name. `broker.settings` and `ha.settings` have the options that both brokers support.
"""

from __future__ import annotations

from typing import Final

_LOGS = "this broker logs to stderr, in one form"
_JOURNAL = "the log sizes its own files"
_MODULES = "there are no modules: AMQP 1.0, ACL, HA and the store are built in"
_AMQP_0_10 = "it is about AMQP 0-10, which this broker does not speak"

WITHOUT_EFFECT: Final = {
    **dict.fromkeys(
        (
            *("log-disable", "log-prefix", "log-to-stderr", "log-to-stdout", "log-to-file", "log-to-syslog", "syslog-name"),
            *("syslog-facility", "log-time", "log-level", "log-source", "log-thread", "log-function", "log-hires-timestamp"),
            *("log-category", "trace", "quiet"),
        ),
        _LOGS,
    ),
    **dict.fromkeys(("load-module", "module-dir", "no-module-dir"), _MODULES),
    **dict.fromkeys(
        (
            *("num-jfiles", "jfile-size-pgs", "wcache-page-size", "wcache-num-pages", "tpl-num-jfiles"),
            *("tpl-jfile-size-pgs", "tpl-wcache-page-size", "tpl-wcache-num-pages", "efp-partition", "efp-file-size"),
            *("overwrite-before-return-to-efp", "journal-flush-timeout"),
        ),
        _JOURNAL,
    ),
    "store-dir": "the store is in the folder of --data-dir",
    **dict.fromkeys(
        ("paging-dir", "max-paging-files"), "bodies that do not fit into --message-memory are read back from the log"
    ),
    **dict.fromkeys(
        ("mgmt-enable", "mgmt-publish", "mgmt-qmf1", "mgmt-qmf2", "mgmt-pub-interval"),
        "management is by AMQP 1.0, and always there",
    ),
    **dict.fromkeys(("max-session-rate", "session-max-unacked", "dtx-default-timeout", "fed-tag"), _AMQP_0_10),
    "worker-threads": "the broker has one thread for its connections, and its own for disks",
    "tcp-nodelay": "it is always on",
    "connection-backlog": "it is 512",
    "queue-purge-interval": "expired messages are removed when their time has come",
    "link-maintenance-interval": "links to other brokers are tried again by themselves",
    "ha-backup-timeout": "a primary waits for no backup: a majority's disks decide",
    "ha-flow-messages": "--ha-flow-bytes bounds what is sent to a backup",
    "enable-timestamp": "messages are passed on as they came",
    "sasl-service-name": "mechanisms that need it are not there",
    "ssl-sasl-no-dict": "mechanisms are chosen by --sasl-mechanisms",
    "ssl-use-export-policy": "TLS is 1.2 or newer, with the library's own choice of ciphers",
    "wait": "the broker stays in the foreground: its port is open when it says so",
}
"""Name -> why it changes nothing."""

INSTEAD: Final = {
    "cluster-mechanism": "the brokers of a cluster log in to each other by --ha-mechanism",
    "cluster-name": "corosync clusters of qpidd are not supported: see --ha-cluster and --ha-brokers-url",
    "ha-queue-replication": "give queues a level: --ha-replicate, or qpid-config --replicate",
    "sasl-config": "users are in the file that --users names; qpid-passwd writes it",
    "ssl-cert-db": "certificates are files in PEM form: --ssl-certificate, --ssl-key, --ssl-ca-file",
    "ssl-cert-name": "certificates are files in PEM form: --ssl-certificate, --ssl-key, --ssl-ca-file",
    "acl-max-connect-per-user": "it is --connection-limit-per-user",
    "acl-max-connect-per-ip": "it is --connection-limit-per-ip",
    "no-data-dir": "every broker has a store: name a folder with --data-dir",
    "known-hosts-url": "it is --ha-public-url",
    "daemon": "start it by systemd or another supervisor: it stays in the foreground",
    "pid-dir": "start it by systemd or another supervisor: it stays in the foreground",
    "listen-disable": "there is --require-encryption yes to listen for TLS alone",
    "protocols": "this broker speaks AMQP 1.0 alone",
    "exchange-patterns": "exchanges are made by attaching where --topic-patterns says so",
    **dict.fromkeys(
        ("default-flow-stop-threshold", "default-flow-resume-threshold"),
        "give queues their own thresholds: qpid-config add queue NAME --argument qpid.flow_stop_count=N (or flow_stop_size)",
    ),
    "default-event-threshold-ratio": "give queues their own: qpid-config add queue NAME --argument qpid.alert_count_up=N",
    **dict.fromkeys(
        ("default-message-group", "default-msg-group"), "give queues their groups: qpid-config add queue NAME --group-header KEY"
    ),
    "federation-tag": "routes need no tag: qpid-route makes them, and messages carry the clusters that they have been in",
}
"""Name -> the alternative; the broker does not start with this option."""
