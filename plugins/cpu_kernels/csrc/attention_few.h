// Attention of up to 16 query rows over one chunk of keys, on tile registers. A row's result doesn't depend on the others.
//
// Scores come as [keys, rows] from K · Qᵀ, keys as they lie in the cache; they are turned, so that weights are found along
// the keys; then [rows, D] = weights · V, for which the values of two keys are interleaved.
#pragma once
#include "attention_rows.h"
#include "attention_tiles.h"

#if CK_LEVEL >= CK_AMX

namespace CK_NS {

struct FewMemory {
    alignas(64) bf16 query[MAX_TILE_HEAD / 32][16 * 32];
    alignas(64) float scores[KEYS][16];
    alignas(64) float turned[16][KEYS];
    alignas(64) bf16 weights[16][KEYS];
    alignas(64) bf16 values[2][KEYS / 32][16 * 32];  // [key pairs, half of 32 elements] of pairs
    alignas(64) float mixed[2][16][16];
    alignas(64) bf16 copied_keys[KEYS * MAX_TILE_HEAD];
};

struct FewOnTiles {
    typedef bf16 Query;
    static int64_t query_width(int64_t head_size) { return head_size; }
    static void copy_query(bf16* out, const bf16* query, int64_t head_size) {
        __builtin_memcpy(out, query, head_size * sizeof(bf16));
    }
    static void copy_query(bf16*, const float*, int64_t) {}  // tiles serve bfloat16 alone

    static void attend(
        const bf16* query, const Chunk& chunk, const Layer& layer, const int64_t* positions, float* states,
        int64_t num_rows) {
        FewMemory memory;
        if (layer.reads_much) fetch(chunk, layer);
        KeyTiles keys = lay_out_keys(memory.copied_keys, chunk, layer);
        for (int64_t row = 0; row < num_rows; row += 16)
            some(
                memory, keys, query + row * layer.head_size, chunk, layer, positions + row,
                state_of(states, row, layer.head_size).at, num_rows - row < 16 ? int(num_rows - row) : 16);
    }

    // All rows at once: met one after another, each new block would be waited for. Inlined: as a function that has no
    // result the compiler leaves it out.
    __attribute__((always_inline)) static inline void fetch(const Chunk& chunk, const Layer& layer) {
        int64_t bytes = layer.row_bytes();
        for (int64_t key = chunk.begin - chunk.first; key < chunk.end - chunk.first; ++key)
            for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(chunk.row[key] + at, _MM_HINT_T0);
    }

    static void some(
        FewMemory& memory, const KeyTiles& keys, const bf16* query, const Chunk& chunk, const Layer& layer,
        const int64_t* positions, float* states, int num_rows) {
        int begin = int(chunk.begin - chunk.first), end = int(chunk.end - chunk.first);
        const bf16* row[16];
        for (int r = 0; r < 16; ++r) row[r] = r < num_rows ? query + r * layer.head_size : nullptr;
        lay_out_queries(memory.query, row, layer.head_size);
        tile_scores(memory.scores, memory.query, keys, begin, end, layer.head_size);
        begin = begin / 32 * 32;
        end = (end + 31) / 32 * 32;
        turn(memory, begin, end, num_rows);
        Fold fold;
        weigh(memory.turned, chunk, layer, positions, begin, end, states, num_rows, fold);
        for (int r = 0; r < num_rows; ++r)
            for (int key = begin; key < end; key += 32)
                _mm512_store_si512(
                    memory.weights[r] + key,
                    (__m512i)_mm512_cvtne2ps_pbh(load(memory.turned[r] + key + 16), load(memory.turned[r] + key)));
        for (int64_t i = 0; i < layer.head_size; i += 32) {
            mix(memory, chunk, layer, begin / 32, end / 32, i);
            for (int r = 0; r < num_rows; ++r)
                Products<bf16>::store_in_order(
                    state_of(states, r, layer.head_size).values() + i, load(memory.mixed[0][r]),
                    load(memory.mixed[1][r]), fold, r, 32);
        }
    }

    // [keys, 16 rows] → [rows, keys], four rows at a time: lane group j of a vector gets key 4 j + i.
    static void turn(FewMemory& memory, int begin, int end, int num_rows) {
        for (int r = 0; r < num_rows; r += 4)
            for (int key = begin; key < end; key += 16) {
                __m512 part[4];
                for (int i = 0; i < 4; ++i) {
                    part[i] = _mm512_castps128_ps512(_mm_load_ps(memory.scores[key + i] + r));
                    part[i] = _mm512_mask_broadcast_f32x4(part[i], 0x00f0, _mm_load_ps(memory.scores[key + 4 + i] + r));
                    part[i] = _mm512_mask_broadcast_f32x4(part[i], 0x0f00, _mm_load_ps(memory.scores[key + 8 + i] + r));
                    part[i] = _mm512_mask_broadcast_f32x4(part[i], 0xf000, _mm_load_ps(memory.scores[key + 12 + i] + r));
                }
                __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(part[0], part[1]));
                __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(part[2], part[3]));
                __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(part[0], part[1]));
                __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(part[2], part[3]));
                store(memory.turned[r] + key, _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)));
                store(memory.turned[r + 1] + key, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
                store(memory.turned[r + 2] + key, _mm512_castpd_ps(_mm512_unpacklo_pd(c, d)));
                store(memory.turned[r + 3] + key, _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
            }
    }

    // 32 elements from the i-th on of all rows, over parts of 32 keys.
    static void mix(FewMemory& memory, const Chunk& chunk, const Layer& layer, int begin, int end, int64_t i) {
        for (int part = begin; part < end; ++part)
            for (int pair = 0; pair < 16; ++pair) {
                const char* const* row = chunk.row + part * 32 + pair * 2;
                __m512i even = value_elements(layer, row[0], i), odd = value_elements(layer, row[1], i);
                _mm512_store_si512(memory.values[0][part] + pair * 32, _mm512_unpacklo_epi16(even, odd));
                _mm512_store_si512(memory.values[1][part] + pair * 32, _mm512_unpackhi_epi16(even, odd));
            }
        _tile_zero(0);
        _tile_zero(1);
        for (int part = begin; part < end; ++part) {
            _tile_loadd(2, memory.weights[0] + part * 32, KEYS * sizeof(bf16));
            _tile_loadd(3, memory.values[0][part], 64);
            _tile_loadd(4, memory.values[1][part], 64);
            _tile_dpbf16ps(0, 2, 3);
            _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, memory.mixed[0], 64);
        _tile_stored(1, memory.mixed[1], 64);
    }
};

}  // namespace CK_NS
#endif
