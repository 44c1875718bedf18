// Attention of many query rows over chunks of keys, on the processor's tile registers.
//
// Everything is transposed, so that a lane is a query row: scores [keys, 16 rows] = K · Qᵀ with the keys as they lie in
// the cache; maximum, weights and sum go from key to key without crossing lanes; pairs of weights are what the second
// product wants on its right: [D, 16 rows] += Vᵀ · weights. Only Vᵀ has to be laid out, once a chunk for all rows.
#pragma once
#include "attention.h"
#include "tile_shapes.h"

#if CK_LEVEL >= CK_AMX

namespace CK_NS {

static const int MAX_TILE_ROWS = 128;
static const int MAX_TILE_HEAD = 256;

// 16 x 16 words of 32 bits.
static inline void transpose(__m512i* v) {
    __m512i t[16];
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        v[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        v[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        v[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        v[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; ++i) {
        v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

// Sixteen rows and what is known of them.
struct TileRows {
    alignas(64) int32_t first_key[16], last_key[16];
    alignas(64) float highest[16], sum[16];
    int64_t least_first, most_first, least_last, most_last;
};

// What a task needs in memory; on the stack of its thread.
struct TileMemory {
    alignas(64) bf16 query[MAX_TILE_ROWS / 16][MAX_TILE_HEAD / 32][16 * 32];  // [D pairs, rows] of pairs
    alignas(64) bf16 values[MAX_TILE_HEAD / 16][KEYS / 32][16 * 32];          // [D, keys]
    alignas(64) float total[MAX_TILE_ROWS / 16][MAX_TILE_HEAD][16];
    alignas(64) float scores[2][KEYS][16];            // of two groups of rows
    alignas(64) bf16 weights[2][KEYS / 32][16 * 32];  // [key pairs, rows] of pairs
    alignas(64) bf16 copied_keys[KEYS * MAX_TILE_HEAD];
    TileRows rows[MAX_TILE_ROWS / 16];
};

// Keys of a chunk as tiles take them: 16 after another, a fixed number of bytes apart.
struct KeyTiles {
    const char* at[KEYS / 16];
    int64_t stride;
};

// Sixteen rows (null: none) as [D pairs, rows] of pairs.
static void lay_out_queries(bf16 (*out)[16 * 32], const bf16* const* row, int64_t head_size) {
    for (int64_t i = 0; i < head_size; i += 32) {
        __m512i part[16];
        for (int r = 0; r < 16; ++r)
            part[r] = row[r] == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(row[r] + i);
        transpose(part);
        for (int r = 0; r < 16; ++r) _mm512_store_si512(out[i / 32] + r * 32, part[r]);
    }
}

static inline __m512i value_elements(const Layer& layer, const char* row, int64_t i) {
    if (layer.kv_kind == BFLOAT16) return _mm512_loadu_si512((const bf16*)row + layer.head_size + i);
    const int8_t* whole = (const int8_t*)row + layer.head_size + i;
    return (__m512i)_mm512_cvtne2ps_pbh(load(whole + 16), load(whole));  // exact
}

static void lay_out_values(TileMemory& memory, const Chunk& chunk, const Layer& layer) {
    int begin = int(chunk.begin - chunk.first), end = int(chunk.end - chunk.first);
    for (int key = begin / 32 * 32; key < end; key += 32)
        for (int64_t i = 0; i < layer.head_size; i += 32) {
            __m512i low[16], high[16];
            for (int pair = 0; pair < 16; ++pair) {
                int k = key + 2 * pair;
                __m512i even = k >= begin && k < end ? value_elements(layer, chunk.row[k], i) : _mm512_setzero_si512();
                __m512i odd =
                    k + 1 >= begin && k + 1 < end ? value_elements(layer, chunk.row[k + 1], i) : _mm512_setzero_si512();
                low[pair] = _mm512_unpacklo_epi16(even, odd);
                high[pair] = _mm512_unpackhi_epi16(even, odd);
            }
            transpose(low);
            transpose(high);
            bf16 *left = memory.values[i / 16][key / 32], *right = memory.values[i / 16 + 1][key / 32];
            // Unpacking left elements 0–3, 8–11, 16–19 … in one, 4–7, 12–15 … in the other.
            for (int r = 0; r < 16; ++r) {
                int at = r % 4 + (r & 4) * 2;
                _mm512_store_si512((r < 8 ? left : right) + at * 32, low[r]);
                _mm512_store_si512((r < 8 ? left : right) + (at + 4) * 32, high[r]);
            }
        }
}

static KeyTiles lay_out_keys(bf16* copied, const Chunk& chunk, const Layer& layer) {
    KeyTiles tiles;
    bool as_they_are = layer.kv_kind == BFLOAT16 && layer.step->block_size % 16 == 0;
    tiles.stride = as_they_are ? layer.row_bytes() : 2 * layer.head_size;
    int begin = int(chunk.begin - chunk.first), end = int(chunk.end - chunk.first);
    for (int tile = begin / 16; tile * 16 < end; ++tile) {
        int first = tile * 16 < begin ? begin : tile * 16;
        if (as_they_are) {
            tiles.at[tile] = chunk.row[first] - (first - tile * 16) * tiles.stride;
            continue;
        }
        tiles.at[tile] = (const char*)(copied + tile * 16 * layer.head_size);
        for (int key = tile * 16; key < tile * 16 + 16; ++key)
            for (int64_t i = 0; i < layer.head_size; i += 16) {
                bf16* out = copied + key * layer.head_size + i;
                store(
                    out, layer.kv_kind == BFLOAT16 ? load((const bf16*)chunk.row[key] + i)
                                                   : load((const int8_t*)chunk.row[key] + i));
            }
    }
    return tiles;
}

// Scores [KEYS, 16 rows] of the tiles with keys from ``begin`` on and before ``end``; the others are left as they are.
static void tile_scores(
    float (*scores)[16], const bf16 (*query)[16 * 32], const KeyTiles& keys, int begin, int end, int64_t head_size) {
    int tile = begin / 16, stop = (end + 15) / 16;
    for (; tile + 1 < stop; tile += 2) {
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t i = 0; i < head_size; i += 32) {
            _tile_loadd(2, query[i / 32], 64);
            _tile_loadd(3, keys.at[tile] + 2 * i, keys.stride);
            _tile_loadd(4, keys.at[tile + 1] + 2 * i, keys.stride);
            _tile_dpbf16ps(0, 3, 2);
            _tile_dpbf16ps(1, 4, 2);
        }
        _tile_stored(0, scores[tile * 16], 64);
        _tile_stored(1, scores[tile * 16 + 16], 64);
    }
    if (tile < stop) {
        _tile_zero(0);
        for (int64_t i = 0; i < head_size; i += 32) {
            _tile_loadd(2, query[i / 32], 64);
            _tile_loadd(3, keys.at[tile] + 2 * i, keys.stride);
            _tile_dpbf16ps(0, 3, 2);
        }
        _tile_stored(0, scores[tile * 16], 64);
    }
}

// The same for two groups at once: keys are read half as often, and no sum waits for itself.
static void tile_scores_of_two(
    float (*scores)[KEYS][16], const bf16 (*first)[16 * 32], const bf16 (*second)[16 * 32], const KeyTiles& keys,
    int begin, int end, int64_t head_size) {
    int last = (end + 15) / 16 - 1;
    for (int tile = begin / 16; tile <= last; tile += 2) {
        int next = tile < last ? tile + 1 : tile;
        zero_square();
        for (int64_t i = 0; i < head_size; i += 32) {
            _tile_loadd(4, keys.at[tile] + 2 * i, keys.stride);
            _tile_loadd(6, first[i / 32], 64);
            _tile_loadd(5, keys.at[next] + 2 * i, keys.stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            _tile_loadd(7, second[i / 32], 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, scores[0][tile * 16], 64);
        _tile_stored(1, scores[0][next * 16], 64);
        _tile_stored(2, scores[1][tile * 16], 64);
        _tile_stored(3, scores[1][next * 16], 64);
    }
}

// Hides what rows don't see, scales, and returns the highest of each row.
static V prepare_scores(
    float (*scores)[16], const TileRows& rows, const Chunk& chunk, const Layer& layer, int begin, int end) {
    __m512i first = _mm512_load_si512(rows.first_key), last = _mm512_load_si512(rows.last_key);
    V top = broadcast(LOWEST);
    for (int key = begin; key < end; ++key) {
        V score = _mm512_load_ps(scores[key]);
        if (layer.kv_kind == INT8) score = mul(score, broadcast(chunk.key_scale[key]));
        score = scaled(score, layer.scale, layer.soft_cap);
        __m512i at = _mm512_set1_epi32(int(chunk.first) + key);
        __mmask16 seen = _mm512_cmpgt_epi32_mask(last, at) & _mm512_cmple_epi32_mask(first, at);
        score = _mm512_mask_blend_ps(seen, broadcast(-__builtin_inff()), score);
        _mm512_store_ps(scores[key], score);
        top = vmax(top, score);
    }
    return top;
}

static V highest_score(const float (*scores)[16], int begin, int end) {
    V a = broadcast(LOWEST), b = a, c = a, d = a;
    for (int key = begin; key < end; key += 4) {
        a = vmax(a, _mm512_load_ps(scores[key]));
        b = vmax(b, _mm512_load_ps(scores[key + 1]));
        c = vmax(c, _mm512_load_ps(scores[key + 2]));
        d = vmax(d, _mm512_load_ps(scores[key + 3]));
    }
    return vmax(vmax(a, b), vmax(c, d));
}

// 2^x to one part in ten thousand, of which bfloat16 keeps less; exactly 0 far below, minus infinity included.
static inline V rough_power_of_two(V x) {
    V part = _mm512_reduce_ps(x, 0x9);  // x minus the whole number below it, by which the last instruction scales
    V p = fma(broadcast(7.802452147e-2f), part, broadcast(2.260671854e-1f));
    p = fma(p, part, broadcast(6.958335042e-1f));
    return _mm512_scalef_ps(fma(p, part, broadcast(9.999251962e-1f)), x);
}

// Scores, times ``scale``, become weights; returns their sums.
static V tile_weights(
    bf16 (*weights)[16 * 32], const float (*scores)[16], const Chunk& chunk, V highest, float scale, bool scaled_values,
    int begin, int end) {
    const __m512i pairs = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    V factor = broadcast(scale), lowered = sub(zero(), highest), left = zero(), right = zero();
    for (int key = begin; key < end; key += 2) {
        V even = rough_power_of_two(fma(_mm512_load_ps(scores[key]), factor, lowered));
        V odd = rough_power_of_two(fma(_mm512_load_ps(scores[key + 1]), factor, lowered));
        left = add(left, even);
        right = add(right, odd);
        if (scaled_values) {
            even = mul(even, broadcast(chunk.value_scale[key]));
            odd = mul(odd, broadcast(chunk.value_scale[key + 1]));
        }
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
        _mm512_store_si512(weights[key / 32] + key % 32 * 16, _mm512_permutexvar_epi16(pairs, both));
    }
    return add(left, right);
}

// Adds Vᵀ · weights to the totals of two groups, for the parts of 32 keys from ``begin`` on and before ``end``.
static void tile_mix(TileMemory& memory, int group, int begin, int end, int64_t head_size) {
    for (int64_t i = 0; i < head_size; i += 32) {
        float(*first)[16] = memory.total[group] + i, (*second)[16] = memory.total[group + 1] + i;
        _tile_loadd(0, first[0], 64);
        _tile_loadd(1, first[16], 64);
        _tile_loadd(2, second[0], 64);
        _tile_loadd(3, second[16], 64);
        for (int part = begin / 32; part < end / 32; ++part) {
            _tile_loadd(4, memory.values[i / 16][part], 64);
            _tile_loadd(6, memory.weights[0][part], 64);
            _tile_loadd(5, memory.values[i / 16 + 1][part], 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            _tile_loadd(7, memory.weights[1][part], 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, first[0], 64);
        _tile_stored(1, first[16], 64);
        _tile_stored(2, second[0], 64);
        _tile_stored(3, second[16], 64);
    }
}

static void keep_share(TileMemory& memory, int group, V share, int64_t head_size) {
    if (_mm512_cmp_ps_mask(share, broadcast(1.0f), _CMP_NEQ_UQ) == 0) return;
    for (int64_t i = 0; i < head_size; ++i)
        _mm512_store_ps(memory.total[group][i], mul(_mm512_load_ps(memory.total[group][i]), share));
}

// Scores of one group become weights, and its totals lose the share that later keys take.
static void weigh_group(
    TileMemory& memory, int group, int place, const Chunk& chunk, const Layer& layer, int begin, int end) {
    TileRows& rows = memory.rows[group];
    bool all_seen = rows.most_first <= chunk.first + begin && rows.least_last >= chunk.first + end;
    bool plain = all_seen && layer.kv_kind == BFLOAT16 && layer.soft_cap == 0.0f;
    float scale = plain ? layer.scale * LOG2_E : 1.0f;
    float(*scores)[16] = memory.scores[place];
    V top = plain ? mul(highest_score(scores, begin, end), broadcast(scale))
                  : prepare_scores(scores, rows, chunk, layer, begin, end);
    V before = _mm512_load_ps(rows.highest), highest = vmax(before, top);
    V share = power_of_two<6>(sub(before, highest));
    V sum = tile_weights(memory.weights[place], scores, chunk, highest, scale, layer.kv_kind == INT8, begin, end);
    _mm512_store_ps(rows.highest, highest);
    _mm512_store_ps(rows.sum, fma(_mm512_load_ps(rows.sum), share, sum));
    keep_share(memory, group, share, layer.head_size);
}

// Two groups of rows meet one chunk.
static void attend_groups(TileMemory& memory, int group, const KeyTiles& keys, const Chunk& chunk, const Layer& layer) {
    const TileRows &first = memory.rows[group], &second = memory.rows[group + 1];
    int64_t from = first.least_first > chunk.begin ? first.least_first : chunk.begin;
    int64_t to = second.most_last < chunk.end ? second.most_last : chunk.end;
    if (from >= to) return;
    int begin = int(from - chunk.first) / 32 * 32, end = int(to - chunk.first + 31) / 32 * 32;
    tile_scores_of_two(
        memory.scores, memory.query[group], memory.query[group + 1], keys, int(from - chunk.first),
        int(to - chunk.first), layer.head_size);
    for (int place = 0; place < 2; ++place) weigh_group(memory, group + place, place, chunk, layer, begin, end);
    tile_mix(memory, group, begin, end, layer.head_size);
}

static void describe_rows(TileMemory& memory, int group, const Layer& layer, const int64_t* positions) {
    TileRows& rows = memory.rows[group];
    rows.least_first = rows.least_last = INT64_MAX;
    rows.most_first = rows.most_last = 0;
    for (int r = 0; r < 16; ++r) {
        int64_t first = layer.first_key(positions[r]), last = layer.last_key(positions[r]);
        rows.first_key[r] = int32_t(first);
        rows.last_key[r] = int32_t(last);
        rows.highest[r] = LOWEST;
        rows.sum[r] = 0.0f;
        rows.least_first = first < rows.least_first ? first : rows.least_first;
        rows.most_first = first > rows.most_first ? first : rows.most_first;
        rows.least_last = last < rows.least_last ? last : rows.least_last;
        rows.most_last = last > rows.most_last ? last : rows.most_last;
    }
    __builtin_memset(memory.total[group], 0, layer.head_size * sizeof(memory.total[group][0]));
}

// [D, 16 rows] → one row after the other; ``take(row, first element, 16 elements)``.
template <class Take>
static void hand_out(const TileMemory& memory, int group, int64_t head_size, V factor, const Take& take) {
    for (int64_t i = 0; i < head_size; i += 16) {
        __m512i part[16];
        for (int d = 0; d < 16; ++d)
            part[d] = (__m512i)mul(_mm512_load_ps(memory.total[group][i + d]), factor);
        transpose(part);
        for (int r = 0; r < 16; ++r) take(r, i, (V)part[r]);
    }
}

// Whether tiles can do what is asked; else vectors do it.
static bool tiles_serve(const Layer& layer) {
    return layer.kind == BFLOAT16 && layer.head_size % 32 == 0 && layer.head_size <= MAX_TILE_HEAD;
}

// Rows of one request over all keys that they see, into ``out``; at most MAX_TILE_ROWS of them.
static void attend_by_tiles(const Layer& layer, const Rows& rows) {
    TileMemory memory;
    int groups = int((rows.end - rows.begin + 31) / 32 * 2);
    for (int group = 0; group < groups; ++group) {
        const bf16* query[16];
        int64_t positions[16];
        for (int r = 0; r < 16; ++r) {
            int64_t row = rows.begin + group * 16 + r;
            bool real = row < rows.end;
            query[r] = real ? (const bf16*)layer.query + place_of(layer, rows, row, layer.query_stride) : nullptr;
            positions[r] = position_of(layer, rows, real ? row : rows.end - 1);
        }
        lay_out_queries(memory.query[group], query, layer.head_size);
        describe_rows(memory, group, layer, positions);
    }
    _tile_loadconfig(&ALL_FULL);
    int64_t begin = memory.rows[0].least_first, end = memory.rows[groups - 1].most_last;
    for (int64_t first = begin / KEYS * KEYS; first < end; first += KEYS) {
        Chunk chunk;
        chunk.first = first;
        chunk.begin = begin > first ? begin : first;
        chunk.end = end < first + KEYS ? end : first + KEYS;
        locate(chunk, layer, rows.request, rows.kv_head);
        KeyTiles keys = lay_out_keys(memory.copied_keys, chunk, layer);
        lay_out_values(memory, chunk, layer);
        for (int group = 0; group < groups; group += 2) attend_groups(memory, group, keys, chunk, layer);
    }
    _tile_release();
    for (int group = 0; group < groups; ++group) {
        V factor = div(broadcast(1.0f), _mm512_load_ps(memory.rows[group].sum));
        hand_out(memory, group, layer.head_size, factor, [&](int r, int64_t i, V elements) {
            int64_t row = rows.begin + group * 16 + r;
            if (row < rows.end)
                store((bf16*)layer.out + place_of(layer, rows, row, layer.num_heads * layer.head_size) + i, elements);
        });
    }
}

}  // namespace CK_NS
#endif
