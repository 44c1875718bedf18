// Attention of a few query rows over one chunk of keys, on vectors. A row's result doesn't depend on the others.
#pragma once
#include "attention.h"

namespace CK_NS {

static const int MAX_ROWS = 8;  // that share a pass over a chunk

// What rows are multiplied as, by the type that lies in the cache.
template <class KV>
struct Products {
    typedef float Query;
    static int64_t query_width(int64_t head_size) { return head_size; }
    static void copy_query(float* out, const bf16* query, int64_t head_size) {
        for (int64_t i = 0; i < head_size; i += WIDTH) store(out + i, load(query + i));
    }
    static void copy_query(float* out, const float* query, int64_t head_size) {
        for (int64_t i = 0; i < head_size; i += WIDTH) store(out + i, load(query + i));
    }

    // Products of a query with WIDTH keys.
    static V scores(const float* query, const char* const* row, int64_t head_size) {
        V total[WIDTH];
        for (int lane = 0; lane < WIDTH; ++lane) total[lane] = zero();
        for (int64_t i = 0; i < head_size; i += WIDTH) {
            V part = load(query + i);
#pragma GCC unroll 16
            for (int lane = 0; lane < WIDTH; ++lane) total[lane] = fma(part, load((const KV*)row[lane] + i), total[lane]);
        }
        return sums(total);
    }

    template <int ROWS>
    static void mix(
        const float (*weights)[KEYS], const Chunk& chunk, int begin, int end, float* states, const float (*fold)[2],
        int64_t head_size) {
        const int VECTORS = ROWS > 4 ? 1 : 2;
        int64_t i = 0;
        for (; i + VECTORS * WIDTH <= head_size; i += VECTORS * WIDTH)
            mix_part<ROWS, VECTORS>(weights, chunk, begin, end, states, fold, head_size, i);
        for (; i < head_size; i += WIDTH) mix_part<ROWS, 1>(weights, chunk, begin, end, states, fold, head_size, i);
    }

    template <int ROWS, int VECTORS>
    static void mix_part(
        const float (*weights)[KEYS], const Chunk& chunk, int begin, int end, float* states, const float (*fold)[2],
        int64_t head_size, int64_t i) {
        V total[ROWS][VECTORS];
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) total[r][v] = zero();
        for (int key = begin; key < end; ++key) {
            const KV* values = (const KV*)chunk.row[key] + head_size + i;
            V value[VECTORS];
            for (int v = 0; v < VECTORS; ++v) value[v] = load(values + v * WIDTH);
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) total[r][v] = fma(broadcast(weights[r][key]), value[v], total[r][v]);
        }
        for (int r = 0; r < ROWS; ++r) {
            float* values = state_of(states, r, head_size).values() + i;
            for (int v = 0; v < VECTORS; ++v)
                store(
                    values + v * WIDTH,
                    fma(load(values + v * WIDTH), broadcast(fold[r][0]), mul(total[r][v], broadcast(fold[r][1]))));
        }
    }
};

#if CK_LEVEL >= CK_AVX512_VNNI_BF16
// Pairs of bfloat16 are multiplied and added in one instruction: pairs of elements for scores, of keys for values.
template <>
struct Products<bf16> {
    typedef bf16 Query;
    static int64_t query_width(int64_t head_size) { return (head_size + 31) / 32 * 32; }
    static void copy_query(bf16* out, const bf16* query, int64_t head_size) {
        for (int64_t i = 0; i < head_size; i += 32) _mm512_store_si512(out + i, elements(query + i, head_size - i));
    }
    static void copy_query(bf16*, const float*, int64_t) {}  // such a cache has such queries

    static __m512i elements(const bf16* p, int64_t count) {
        return count >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(0xffff, p);
    }

    static V scores(const bf16* query, const char* const* row, int64_t head_size) {
        V total[WIDTH];
        for (int lane = 0; lane < WIDTH; ++lane) total[lane] = zero();
        int64_t i = 0;
        for (; i + 32 <= head_size; i += 32) {
            __m512bh part = (__m512bh)_mm512_load_si512(query + i);
#pragma GCC unroll 16
            for (int lane = 0; lane < WIDTH; ++lane)
                total[lane] = _mm512_dpbf16_ps(
                    total[lane], part, (__m512bh)_mm512_loadu_si512((const bf16*)row[lane] + i));
        }
        if (i < head_size) {
            __m512bh part = (__m512bh)_mm512_load_si512(query + i);
#pragma GCC unroll 16
            for (int lane = 0; lane < WIDTH; ++lane)
                total[lane] = _mm512_dpbf16_ps(
                    total[lane], part, (__m512bh)_mm512_maskz_loadu_epi16(0xffff, (const bf16*)row[lane] + i));
        }
        return sums(total);
    }

    template <int ROWS>
    static void mix(
        const float (*weights)[KEYS], const Chunk& chunk, int begin, int end, float* states, const float (*fold)[2],
        int64_t head_size) {
        alignas(64) bf16 pairs[ROWS][KEYS];
        begin &= ~31;
        end = (end + 31) & ~31;
        for (int r = 0; r < ROWS; ++r)
            for (int key = begin; key < end; key += 32)
                _mm512_store_si512(
                    pairs[r] + key,
                    (__m512i)_mm512_cvtne2ps_pbh(load(weights[r] + key + WIDTH), load(weights[r] + key)));
        for (int64_t i = 0; i < head_size; i += 32) mix_part<ROWS>(pairs, chunk, begin, end, states, fold, head_size, i);
    }

    template <int ROWS>
    static void mix_part(
        const bf16 (*pairs)[KEYS], const Chunk& chunk, int begin, int end, float* states, const float (*fold)[2],
        int64_t head_size, int64_t i) {
        V low[ROWS], high[ROWS];
        for (int r = 0; r < ROWS; ++r) low[r] = high[r] = zero();
        int64_t count = head_size - i;
        for (int key = begin; key < end; key += 2) {
            __m512i even = elements((const bf16*)chunk.row[key] + head_size + i, count);
            __m512i odd = elements((const bf16*)chunk.row[key + 1] + head_size + i, count);
            __m512bh left = (__m512bh)_mm512_unpacklo_epi16(even, odd);
            __m512bh right = (__m512bh)_mm512_unpackhi_epi16(even, odd);
            for (int r = 0; r < ROWS; ++r) {
                int pair;
                __builtin_memcpy(&pair, pairs[r] + key, 4);
                low[r] = _mm512_dpbf16_ps(low[r], (__m512bh)_mm512_set1_epi32(pair), left);
                high[r] = _mm512_dpbf16_ps(high[r], (__m512bh)_mm512_set1_epi32(pair), right);
            }
        }
        for (int r = 0; r < ROWS; ++r)
            store_in_order(state_of(states, r, head_size).values() + i, low[r], high[r], fold[r], count);
    }

    // Unpacking left elements 0–3, 8–11, 16–19 … in one vector, 4–7, 12–15 … in the other.
    static void store_in_order(float* values, V low, V high, const float* fold, int64_t count) {
        const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        V keep = broadcast(fold[0]), take = broadcast(fold[1]);
        store(values, fma(load(values), keep, mul(_mm512_permutex2var_ps(low, first, high), take)));
        if (count < 32) return;
        store(values + 16, fma(load(values + 16), keep, mul(_mm512_permutex2var_ps(low, second, high), take)));
    }
};
#endif

// Scores of one row become weights; the row's state is told what they mean for it.
static inline void weigh(
    float* scores, const Chunk& chunk, const Layer& layer, int64_t position, int begin, int end, State state,
    float* fold) {
    int64_t visible = layer.first_key(position) - chunk.first, unseen = layer.last_key(position) - chunk.first;
    V top = broadcast(LOWEST), total = zero();
    for (int key = begin; key < end; key += WIDTH) {
        V score = load(scores + key);
        if (layer.kv_kind == INT8) score = mul(score, load(chunk.key_scale + key));
        score = only_between(scaled(score, layer.scale, layer.soft_cap), visible - key, unseen - key);
        store(scores + key, score);
        top = vmax(top, score);
    }
    float highest = largest(top), both = state.highest() > highest ? state.highest() : highest;
    for (int key = begin; key < end; key += WIDTH) {
        V weight = power_of_two<6>(sub(load(scores + key), broadcast(highest)));
        total = add(total, weight);
        store(scores + key, layer.kv_kind == INT8 ? mul(weight, load(chunk.value_scale + key)) : weight);
    }
    fold[0] = power_of_two(state.highest() - both);
    fold[1] = power_of_two(highest - both);
    state.sum() = __builtin_fmaf(state.sum(), fold[0], sum(total) * fold[1]);
    state.highest() = both;
}

template <class KV, int ROWS>
static void attend_together(
    const typename Products<KV>::Query* query, const Chunk& chunk, const Layer& layer, const int64_t* positions,
    float* states) {
    alignas(64) float scores[ROWS][KEYS];
    float fold[ROWS][2];
    int64_t width = Products<KV>::query_width(layer.head_size);
    int begin = int(chunk.begin - chunk.first) / 32 * 32, end = int(chunk.end - chunk.first + 31) / 32 * 32;
    for (int key = begin; key < end; key += WIDTH)
        for (int r = 0; r < ROWS; ++r)
            store(scores[r] + key, Products<KV>::scores(query + r * width, chunk.row + key, layer.head_size));
    for (int r = 0; r < ROWS; ++r)
        weigh(scores[r], chunk, layer, positions[r], begin, end, state_of(states, r, layer.head_size), fold[r]);
    Products<KV>::template mix<ROWS>(scores, chunk, begin, end, states, fold, layer.head_size);
}

// Any number of rows: query [rows, query_width], positions [rows], states as in ``State``.
template <class KV>
static void attend_chunk(
    const typename Products<KV>::Query* query, const Chunk& chunk, const Layer& layer, const int64_t* positions,
    float* states, int64_t num_rows) {
    int64_t width = Products<KV>::query_width(layer.head_size), stride = State::stride(layer.head_size);
    while (num_rows > 0) {
        int64_t taken = num_rows < MAX_ROWS ? num_rows : MAX_ROWS;
        switch (taken) {
            case 1: attend_together<KV, 1>(query, chunk, layer, positions, states); break;
            case 2: attend_together<KV, 2>(query, chunk, layer, positions, states); break;
            case 3: attend_together<KV, 3>(query, chunk, layer, positions, states); break;
            case 4: attend_together<KV, 4>(query, chunk, layer, positions, states); break;
            case 5: attend_together<KV, 5>(query, chunk, layer, positions, states); break;
            case 6: attend_together<KV, 6>(query, chunk, layer, positions, states); break;
            case 7: attend_together<KV, 7>(query, chunk, layer, positions, states); break;
            default: attend_together<KV, 8>(query, chunk, layer, positions, states); break;
        }
        query += taken * width;
        positions += taken;
        states += taken * stride;
        num_rows -= taken;
    }
}

}  // namespace CK_NS
