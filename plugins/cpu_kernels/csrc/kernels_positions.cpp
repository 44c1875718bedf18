// Rows by id, and heads turned by their positions.
#include "vectors.h"

namespace CK_NS {

static const int64_t LEAST_ROW_ELEMENTS = 8192;

static int64_t least_rows_of(int64_t width) { return LEAST_ROW_ELEMENTS / (width + 1) + 1; }

static inline int64_t within(int64_t index, int64_t count) { return index < 0 ? 0 : index < count ? index : count - 1; }

// One head, element i with element i + half; what is beyond both is copied.
static void turn(bf16* out, const bf16* head, const float* cosine, const float* sine, int64_t half, int64_t size) {
    over(
        half,
        [&](int64_t i) {
            V a = load(head + i), b = load(head + half + i), c = load(cosine + i), s = load(sine + i);
            store(out + i, sub(mul(a, c), mul(b, s)));
            store(out + half + i, add(mul(b, c), mul(a, s)));
        },
        [&](int64_t i, int n) {
            V a = load_part(head + i, n), b = load_part(head + half + i, n);
            V c = load_part(cosine + i, n), s = load_part(sine + i, n);
            store_part(out + i, sub(mul(a, c), mul(b, s)), n);
            store_part(out + half + i, add(mul(b, c), mul(a, s)), n);
        });
    __builtin_memcpy(out + 2 * half, head + 2 * half, size_t(size - 2 * half) * sizeof(bf16));
}

}  // namespace CK_NS

using namespace CK_NS;

// query_out [T, H·D], key_out [T, K·D], query, key (rows apart by their strides), positions [T] int64, table [P, R] float32
// (cosines, then sines), T, H, K, D, R, P, query_stride, key_stride. Positions outside the table take its ends.
CK_KERNEL(rotary_embedding) {
    bf16 *query_out = pointer<bf16>(args[0]), *key_out = pointer<bf16>(args[1]);
    const bf16 *query = pointer<bf16>(args[2]), *key = pointer<bf16>(args[3]);
    const int64_t* positions = pointer<int64_t>(args[4]);
    const float* table = pointer<float>(args[5]);
    int64_t tokens = args[6].i, heads = args[7].i, kv_heads = args[8].i, size = args[9].i, rotated = args[10].i;
    int64_t num_positions = args[11].i, query_stride = args[12].i, key_stride = args[13].i;
    parallel_ranges(tokens, least_rows_of((heads + kv_heads) * size), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
            const float* cosine = table + within(positions[token], num_positions) * rotated;
            const float* sine = cosine + rotated / 2;
            for (int64_t head = 0; head < heads; ++head)
                turn(query_out + (token * heads + head) * size, query + token * query_stride + head * size, cosine,
                     sine, rotated / 2, size);
            for (int64_t head = 0; head < kv_heads; ++head)
                turn(key_out + (token * kv_heads + head) * size, key + token * key_stride + head * size, cosine, sine,
                     rotated / 2, size);
        }
    });
}

// out [T, E], ids [T] int64, weight [V, E] (rows stride apart), T, E, V, stride. An id that isn't there gives zeros.
CK_KERNEL(embedding) {
    bf16* out = pointer<bf16>(args[0]);
    const int64_t* ids = pointer<int64_t>(args[1]);
    const bf16* weight = pointer<bf16>(args[2]);
    int64_t tokens = args[3].i, width = args[4].i, vocabulary = args[5].i, stride = args[6].i;
    parallel_ranges(tokens, least_rows_of(width), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
            int64_t id = ids[token];
            if (id >= 0 && id < vocabulary)
                __builtin_memcpy(out + token * width, weight + id * stride, size_t(width) * sizeof(bf16));
            else __builtin_memset(out + token * width, 0, size_t(width) * sizeof(bf16));
        }
    });
}

// The same from a weight that is packed for products (see packed_product.h): pairs of a row are 16 pairs apart.
CK_KERNEL(packed_embedding) {
    bf16* out = pointer<bf16>(args[0]);
    const int64_t* ids = pointer<int64_t>(args[1]);
    const uint32_t* weight = pointer<uint32_t>(args[2]);
    int64_t tokens = args[3].i, width = args[4].i, vocabulary = args[5].i, pairs = width / 2;
    parallel_ranges(tokens, least_rows_of(width), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
            int64_t id = ids[token];
            uint32_t* to = reinterpret_cast<uint32_t*>(out + token * width);
            const uint32_t* from = weight + id / 16 * pairs * 16 + id % 16;
            bool known = id >= 0 && id < vocabulary;
            for (int64_t pair = 0; pair < pairs; ++pair) to[pair] = known ? from[pair * 16] : 0;
        }
    });
}
