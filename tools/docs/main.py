"""Writes the tables of README and docs/ from benchmarks/figures: `make docs`.

python -m hpmoe.tools.docs.main
"""

from hpmoe.tools.docs import figures

if __name__ == '__main__':
  figures.fill()
