"""Access control in the grammar of qpidd's ACL files. It is pure, so that brokers and `qpid-config acl-check` give the same
answers.

`lookups` lists the possible checks, `questions` the checks for each action of a client, `grammar` reads a file, `rules` decides.

Source: Qpid C++ broker book, "Authorization". docs/reference/acl.md lists the differences.
"""
