// What the attention kernels know of a step, a layer and the paged cache.
//
// T tokens of the step, R requests, H query heads, K KV heads, G = H / K, D head size, B block size, M table width.
// A page is [K, B] rows; a row has the key, then the value of one token and head, and in int8 then the scales of both,
// float32. The rows of a task are the queries of one request and one KV head, by token, then by head of the group.
#pragma once
#include "attention_vectors.h"

namespace CK_NS {

// Keys are met in chunks that begin at multiples of this. What a chunk gives a decode depends on nothing but the query
// and the chunk, and chunks are added up in order: so its result doesn't depend on how work is cut. Nor does a prompt's
// where a fixed order is asked for; without it, tiles may meet parts of a chunk that others meet as a whole.
static const int KEYS = 128;

enum Kind { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

// Bytes of a row of a page.
static inline int64_t row_bytes_of(int64_t kv_kind, int64_t head_size) {
    return kv_kind == INT8 ? 2 * head_size + 8 : 2 * head_size * (kv_kind == BFLOAT16 ? 2 : 4);
}

// Written once a step by the metadata builder, read when the kernel runs; eight-byte words.
struct Step {
    int64_t num_requests;
    const int32_t* query_starts;  // [R + 1]
    const int32_t* seq_lens;      // [R]; 0 is padding
    const int32_t* block_table;   // [R, M], table_stride apart
    int64_t table_stride;
    int64_t block_size;
};

struct Layer {
    void* out;  // [T, H, D]
    const void* query;
    int64_t query_stride;  // elements from token to token
    int64_t num_tokens;
    const char* pages;
    int64_t page_stride;  // bytes
    const Step* step;
    int64_t num_heads, num_kv_heads, head_size;
    float scale;
    int64_t window;  // 0: none
    float soft_cap;  // 0: none
    int64_t kind, kv_kind;
    bool fixed_order;  // results must not depend on how a prompt is cut
    bool reads_much = false;  // more of the cache than inner caches hold

    int64_t group() const { return num_heads / num_kv_heads; }
    int64_t row_bytes() const { return row_bytes_of(kv_kind, head_size); }
    int64_t num_new(int64_t request) const { return step->query_starts[request + 1] - step->query_starts[request]; }
    // Position of a request's first new token.
    int64_t start(int64_t request) const { return step->seq_lens[request] - num_new(request); }
    // The keys that a query at a position sees: from the first on, and before the last.
    int64_t last_key(int64_t position) const { return position + 1; }
    int64_t first_key(int64_t position) const {
        return window > 0 && position >= window ? position - window + 1 : 0;
    }
};

// Query rows of one request and KV head.
struct Rows {
    int64_t request, kv_head, begin, end;
};

static inline int64_t position_of(const Layer& layer, const Rows& rows, int64_t row) {
    return layer.start(rows.request) + row / layer.group();
}

// Offset, in elements, of a row in a tensor [T, H, D] with tokens ``stride`` apart.
static inline int64_t place_of(const Layer& layer, const Rows& rows, int64_t row, int64_t stride) {
    int64_t token = layer.step->query_starts[rows.request] + row / layer.group();
    int64_t head = rows.kv_head * layer.group() + row % layer.group();
    return token * stride + head * layer.head_size;
}

// Keys of one chunk: where they lie. Only keys from ``begin`` on and before ``end`` may be read: in other places of the
// cache anything may stand. Pointers outside of that are those of the nearest that may be read.
struct Chunk {
    const char* row[KEYS];
    float key_scale[KEYS], value_scale[KEYS];
    int64_t first, begin, end;
};

static inline void locate(Chunk& chunk, const Layer& layer, int64_t request, int64_t kv_head) {
    const Step& step = *layer.step;
    const int32_t* table = step.block_table + request * step.table_stride;
    int64_t bytes = layer.row_bytes(), size = step.block_size, at = chunk.begin;
    while (at < chunk.end) {
        int64_t block = at / size, stop = (block + 1) * size < chunk.end ? (block + 1) * size : chunk.end;
        const char* row = layer.pages + table[block] * layer.page_stride + (kv_head * size + at % size) * bytes;
        for (; at < stop; ++at, row += bytes) chunk.row[at - chunk.first] = row;
    }
    int begin = int(chunk.begin - chunk.first), end = int(chunk.end - chunk.first);
    for (int i = 0; i < begin; ++i) chunk.row[i] = chunk.row[begin];
    for (int i = end; i < KEYS; ++i) chunk.row[i] = chunk.row[end - 1];
    if (layer.kv_kind != INT8) return;
    for (int i = 0; i < KEYS; ++i) {
        const char* scales = chunk.row[i] + 2 * layer.head_size;
        __builtin_memcpy(&chunk.key_scale[i], scales, 4);
        __builtin_memcpy(&chunk.value_scale[i], scales + 4, 4);
    }
}

// Scores as powers of two.
static inline V scaled(V score, float scale, float soft_cap) {
    if (soft_cap == 0.0f) return mul(score, broadcast(scale * LOG2_E));
    V power = power_of_two<6>(vmin(mul(score, broadcast(2.0f * LOG2_E * scale / soft_cap)), broadcast(120.0f)));
    V tangent = sub(broadcast(1.0f), div(broadcast(2.0f), add(power, broadcast(1.0f))));
    return mul(tangent, broadcast(soft_cap * LOG2_E));
}

// What is known of a row after some keys: highest score, in powers of two; sum of the weights; weighted sum of values.
struct State {
    float* at;
    static int64_t stride(int64_t head_size) { return 16 + head_size; }
    float& highest() const { return at[0]; }
    float& sum() const { return at[1]; }
    float* values() const { return at + 16; }
};

static inline State state_of(float* states, int64_t row, int64_t head_size) {
    return State{states + row * State::stride(head_size)};
}

static inline void clear(State state, int64_t head_size) {
    state.highest() = LOWEST;
    state.sum() = 0.0f;
    for (int64_t i = 0; i < head_size; ++i) state.values()[i] = 0.0f;
}

// Add what a later chunk gave. The same arithmetic as in the kernels, so that bits don't tell who added.
static inline void add_chunk(State total, State part, int64_t head_size) {
    float highest = total.highest() > part.highest() ? total.highest() : part.highest();
    float keep = power_of_two(total.highest() - highest), take = power_of_two(part.highest() - highest);
    total.highest() = highest;
    total.sum() = __builtin_fmaf(total.sum(), keep, part.sum() * take);
    for (int64_t i = 0; i < head_size; i += WIDTH)
        store(
            total.values() + i,
            fma(load(total.values() + i), broadcast(keep), mul(load(part.values() + i), broadcast(take))));
}

template <class Q>
static inline void write_row(Q* out, State state, int64_t head_size) {
    V weight = broadcast(state.sum() > 0.0f ? 1.0f / state.sum() : 0.0f);
    for (int64_t i = 0; i < head_size; i += WIDTH) store(out + i, mul(load(state.values() + i), weight));
}

}  // namespace CK_NS
