"""corefw beside vLLM, OpenVINO GenAI, llama.cpp and transformers on the same prompts, taking turns.

    scripts/bench_peers.sh .peers          # once: each peer's environment, and the weights
    python benchmarks/compare.py           # a table, JSON and pictures in comparison/
    python benchmarks/compare.py --quick   # one short round of each

Peers that aren't there are left out. Needs the extras ``test`` (transformers, gguf) and ``bench`` (matplotlib).
"""

from __future__ import annotations

import sys

from comparison.command import main

if __name__ == "__main__":
    sys.exit(main())
