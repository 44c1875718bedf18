#!/bin/sh
# Builds wheels of the core and of every pack, installs them alone into an empty environment, and tries them there.
# Usage: scripts/check_wheels.sh [FOLDER]   (PYTHON names the interpreter, PIP_ARGS adds to each pip install)
set -eu

python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$(mktemp -d)}
mkdir -p "$work"
work=$(cd "$work" && pwd)
unset PYTHONPATH VLLM_PLUGINS || true

step() { echo "check_wheels: $1"; }

step "building wheels"
mkdir -p "$work/wheels"
rm -f "$work"/wheels/*.whl
PYTHON="$python" "$root/scripts/build_wheels.sh" "$work/wheels"

step "installing $(cd "$work/wheels" && echo *.whl)"
[ -x "$work/env/bin/python" ] || "$python" -m venv "$work/env"
pip="$work/env/bin/python -m pip --disable-pip-version-check"
# shellcheck disable=SC2086
$pip install --quiet --force-reinstall --no-deps "$work"/wheels/*.whl
# shellcheck disable=SC2086
$pip install --quiet ${PIP_ARGS:-} "$work"/wheels/*.whl pytest pytest-asyncio pytest-timeout hypothesis httpx

cd "$work"
corefw="$work/env/bin/corefw"
step "what is installed"
"$work/env/bin/python" -c "
import corefw, pathlib
assert pathlib.Path(corefw.__file__).is_relative_to(pathlib.Path('$work').resolve()), corefw.__file__
"
"$corefw" plugins list
"$corefw" plugins doctor

step "a tiny model"
"$work/env/bin/python" - "$work/tiny" <<'PYTHON'
import sys
from pathlib import Path

from corefw import LLM
from corefw.testing.tiny_models import write_tiny_llama

if __name__ == "__main__":
    with LLM(str(write_tiny_llama(Path(sys.argv[1]))), dtype="float32", num_gpu_blocks_override=50) as llm:
        (result,) = llm.generate("abc", llm.default_params(max_tokens=5, ignore_eos=True))
    assert len(result.outputs[0].token_ids) == 5
PYTHON
"$corefw" generate abc --model "$work/tiny" --max-tokens 5 --dtype float32 >/dev/null

step "a new distribution"
rm -rf "$work/corefw-here"
"$corefw" plugins new strategy here
"$corefw" plugins check "$work/corefw-here"

for pack in "$root"/plugins/*/; do
    name=$(basename "$pack")
    step "the suite of $name"
    rm -rf "$work/suite"
    mkdir -p "$work/suite/plugins/$name"
    cp -R "$pack/tests" "$work/suite/plugins/$name/tests"
    cp "$root/pyproject.toml" "$work/suite/pyproject.toml"
    (cd "$work/suite" && "$work/env/bin/python" -m pytest -q -m "not gpu" "plugins/$name/tests")
done
step "all is well"
