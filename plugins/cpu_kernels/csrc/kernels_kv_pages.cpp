// Writing keys and values into the paged cache. A page is [K, B] rows; see attention.h.
#include "attention.h"

namespace CK_NS {

static const int64_t LEAST_TOKENS = 32;  // that a thread takes

template <class To, class From>
static void copy_head(To* out, const From* from, int64_t size) {
    for (int64_t i = 0; i < size; i += WIDTH) store(out + i, load(from + i));
}

// The largest magnitude becomes 127; returns what a whole number stands for.
template <class From>
static float round_head(int8_t* out, const From* from, int64_t size) {
    V top = zero();
    for (int64_t i = 0; i < size; i += WIDTH) top = vmax(top, magnitude(load(from + i)));
    float scale = largest(top) / 127.0f, least = 1.17549435e-38f;
    V divisor = broadcast(scale > least ? scale : least);
    for (int64_t i = 0; i < size; i += WIDTH) store_rounded(out + i, div(load(from + i), divisor));
    return scale;
}

template <class From>
static void write_head(char* row, const From* key, const From* value, int64_t size, int64_t kv_kind) {
    if (kv_kind == FLOAT32) {
        copy_head((float*)row, key, size);
        copy_head((float*)row + size, value, size);
    } else if (kv_kind == BFLOAT16) {
        copy_head((bf16*)row, key, size);
        copy_head((bf16*)row + size, value, size);
    } else {
        float scales[2] = {
            round_head((int8_t*)row, key, size), round_head((int8_t*)row + size, value, size)};
        __builtin_memcpy(row + 2 * size, scales, 8);
    }
}

template <class From>
static void write(const ck_arg* args, int64_t begin, int64_t end) {
    const From *key = pointer<From>(args[0]), *value = pointer<From>(args[1]);
    char* pages = pointer<char>(args[4]);
    const int64_t* slots = pointer<int64_t>(args[6]);
    int64_t heads = args[8].i, size = args[9].i, block_size = args[10].i, kv_kind = args[12].i;
    int64_t bytes = row_bytes_of(kv_kind, size);
    for (int64_t token = begin; token < end; ++token) {
        if (slots[token] < 0) continue;
        char* page = pages + slots[token] / block_size * args[5].i + slots[token] % block_size * bytes;
        for (int64_t head = 0; head < heads; ++head)
            write_head(
                page + head * block_size * bytes, key + token * args[2].i + head * size,
                value + token * args[3].i + head * size, size, kv_kind);
    }
}

}  // namespace CK_NS

using namespace CK_NS;

// key, value [T, K, D] (tokens key_stride, value_stride elements apart), key_stride, value_stride, pages (page_stride
// bytes apart), page_stride, slots int64 [T] (negative: skip), T, K, D, B, kind, kv_kind
CK_KERNEL(write_kv_pages) {
    parallel_ranges(args[7].i, LEAST_TOKENS, [&](int64_t begin, int64_t end) {
        if (args[11].i == FLOAT32)
            write<float>(args, begin, end);
        else
            write<bf16>(args, begin, end);
    });
}
