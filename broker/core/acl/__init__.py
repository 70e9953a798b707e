"""Access control in the grammar of qpidd's ACL files: pure, so that a broker and `qpid-config acl-check` decide alike.

`lookups` says what may be asked, `questions` what is asked for each thing that a client wants, `grammar` reads a file, `rules`
decides.

Source: Qpid C++ broker book, "Authorization"; docs/reference/acl.md says what is different here.
"""
