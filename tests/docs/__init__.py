"""The pages are run as they are written: README.md, docs/quickstart.md, docs/recipes.md.

Every fenced block of ``bash``, ``sh``, ``console`` and ``python`` in a page is run, in order, in
one bash session of that page (``tests.docs.session``): exported variables, functions, the working
directory and background jobs live on from block to block. The session starts in a fresh copy of
the repository's top-level files and ``docs/``, with ``HOME``, ``XDG_…`` and ``TMPDIR`` in a
temporary folder and no ``TIDEGATE_…`` variable but ``TIDEGATE_HEALTH_PORT``, a free port; what
still runs after the last block is ended.

- ``bash``, ``sh``: run like a script that stops at the first command that fails. The block must
  end with exit code 0; of a command that is meant to be refused say so: ``… || echo "exit $?"``.
- ``console``: lines that begin with ``$ `` are commands (``> `` continues one), the lines below
  each are what it prints, and they are compared.
- ``python``: run as a script of its own, in the session's folder and environment.
- Any other language is only shown.

What a page wants otherwise stands in a comment on the line above the fence:

``<!-- docs: exit 3 -->``
    The block ends with this code.
``<!-- docs: output -->``
    Not run: this block (``text``, ``json``, …) is what the block before it printed; compared.
``<!-- docs: file NAME -->``
    Not run: the block is written to this file of the working directory for later blocks to use.
``<!-- docs: skip REASON -->``
    Not run, and counted: ``SKIPPED`` in ``test_pages`` says how many a page may have.

Comparing: printed lines and the page's must agree one by one, runs of spaces count as one. ``…``
in the page stands for any text within a line, and alone on a line for any lines. Of what differs
from run to run, these need no ``…``: RFC 3339 instants, milliseconds since 1970, uids, hex of 12
digits or more, durations to the second or finer (``8.1 ms``, ``14m 59s``). Output and errors count
together.

``python3 -m venv DIR`` is answered with a folder whose programs are those of the environment that
runs the tests, and its ``pip install`` does nothing: the packages are there, and the tests of a
page must not fetch them again. README and the quickstart begin without ``tidegate`` on the
``PATH``, as a reader does; every other page begins with it.

A worker in the background: ``tidegate run 2> worker.log &``, then ``tidegate status --wait 30s``.

To run one page: ``pytest tests/docs -k quickstart``.
"""
