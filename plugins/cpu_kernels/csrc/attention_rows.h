// Attention of a few query rows over one chunk of keys, on vectors. A row's result doesn't depend on the others.
#pragma once
#include "attention.h"

namespace CK_NS {

static const int MAX_ROWS = 8;  // that share a pass over a chunk

// What a chunk does to the rows' states: earlier values are multiplied by the first factor, the chunk's by the second.
struct Fold {
    alignas(64) float keep[16], take[16];
};

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
        const float (*weights)[KEYS], const Chunk& chunk, int begin, int end, float* states, const Fold& fold,
        int64_t head_size) {
        const int VECTORS = ROWS > 4 ? 1 : 2;
        int64_t i = 0;
        for (; i + VECTORS * WIDTH <= head_size; i += VECTORS * WIDTH)
            mix_part<ROWS, VECTORS>(weights, chunk, begin, end, states, fold, head_size, i);
        for (; i < head_size; i += WIDTH) mix_part<ROWS, 1>(weights, chunk, begin, end, states, fold, head_size, i);
    }

    template <int ROWS, int VECTORS>
    static void mix_part(
        const float (*weights)[KEYS], const Chunk& chunk, int begin, int end, float* states, const Fold& fold,
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
                    fma(load(values + v * WIDTH), broadcast(fold.keep[r]), mul(total[r][v], broadcast(fold.take[r]))));
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
        const float (*weights)[KEYS], const Chunk& chunk, int begin, int end, float* states, const Fold& fold,
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
        const bf16 (*pairs)[KEYS], const Chunk& chunk, int begin, int end, float* states, const Fold& fold,
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
            store_in_order(state_of(states, r, head_size).values() + i, low[r], high[r], fold, r, count);
    }

    // Unpacking left elements 0–3, 8–11, 16–19 … in one vector, 4–7, 12–15 … in the other.
    static void store_in_order(float* values, V low, V high, const Fold& fold, int r, int64_t count) {
        const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        V keep = broadcast(fold.keep[r]), take = broadcast(fold.take[r]);
        store(values, fma(load(values), keep, mul(_mm512_permutex2var_ps(low, first, high), take)));
        if (count < 32) return;
        store(values + 16, fma(load(values + 16), keep, mul(_mm512_permutex2var_ps(low, second, high), take)));
    }
};
#endif

// Scales and hides; returns the highest score.
static inline float prepare_row(
    float* scores, const Chunk& chunk, const Layer& layer, int64_t position, int begin, int end) {
    int64_t visible = layer.first_key(position) - chunk.first, unseen = layer.last_key(position) - chunk.first;
    bool hides = visible > begin || unseen < end;
    V top = broadcast(LOWEST);
    for (int key = begin; key < end; key += WIDTH) {
        V score = load(scores + key);
        if (layer.kv_kind == INT8) score = mul(score, load(chunk.key_scale + key));
        score = scaled(score, layer.scale, layer.soft_cap);
        if (hides) score = only_between(score, visible - key, unseen - key);
        store(scores + key, score);
        top = vmax(top, score);
    }
    return largest(top);
}

// Scores become weights; returns their sum, which the scales of values don't enter.
static inline float weigh_row(float* scores, const Chunk& chunk, const Layer& layer, float highest, int begin, int end) {
    V total = zero();
    for (int key = begin; key < end; key += WIDTH) {
        V weight = power_of_two<6>(sub(load(scores + key), broadcast(highest)));
        total = add(total, weight);
        store(scores + key, layer.kv_kind == INT8 ? mul(weight, load(chunk.value_scale + key)) : weight);
    }
    return sum(total);
}

// Scores of up to 16 rows become weights. One thing after the other for all rows: a row alone would wait for itself.
static inline void weigh(
    float (*scores)[KEYS], const Chunk& chunk, const Layer& layer, const int64_t* positions, int begin, int end,
    float* states, int num_rows, Fold& fold) {
    alignas(64) float before[16], highest[16], sums[16];
    for (int r = 0; r < 16; ++r) before[r] = highest[r] = LOWEST;
    for (int r = 0; r < num_rows; ++r) {
        highest[r] = prepare_row(scores[r], chunk, layer, positions[r], begin, end);
        before[r] = state_of(states, r, layer.head_size).highest();
    }
    for (int r = 0; r < num_rows; ++r) sums[r] = weigh_row(scores[r], chunk, layer, highest[r], begin, end);
    for (int r = 0; r < num_rows; r += WIDTH) {
        V old = load(before + r), top = load(highest + r), both = vmax(old, top);
        store(fold.keep + r, power_of_two<6>(sub(old, both)));
        store(fold.take + r, power_of_two<6>(sub(top, both)));
        store(highest + r, both);
    }
    for (int r = 0; r < num_rows; ++r) {
        State state = state_of(states, r, layer.head_size);
        state.highest() = highest[r];
        state.sum() = __builtin_fmaf(state.sum(), fold.keep[r], sums[r] * fold.take[r]);
    }
}

template <class KV, int ROWS>
static void attend_together(
    const typename Products<KV>::Query* query, const Chunk& chunk, const Layer& layer, const int64_t* positions,
    float* states) {
    alignas(64) float scores[ROWS][KEYS];
    Fold fold;
    int64_t width = Products<KV>::query_width(layer.head_size);
    int begin = int(chunk.begin - chunk.first) / 32 * 32, end = int(chunk.end - chunk.first + 31) / 32 * 32;
    for (int key = begin; key < end; key += WIDTH)
        for (int r = 0; r < ROWS; ++r)
            store(scores[r] + key, Products<KV>::scores(query + r * width, chunk.row + key, layer.head_size));
    weigh(scores, chunk, layer, positions, begin, end, states, ROWS, fold);
    Products<KV>::template mix<ROWS>(scores, chunk, begin, end, states, fold, layer.head_size);
}

// Any number of rows: query [rows, query_width], positions [rows], states as in ``State``.
template <class KV>
struct OnVectors {
    typedef typename Products<KV>::Query Query;
    static int64_t query_width(int64_t head_size) { return Products<KV>::query_width(head_size); }
    template <class From>
    static void copy_query(Query* out, const From* query, int64_t head_size) {
        Products<KV>::copy_query(out, query, head_size);
    }

    static void attend(
        const Query* query, const Chunk& chunk, const Layer& layer, const int64_t* positions, float* states,
        int64_t num_rows) {
        int64_t width = query_width(layer.head_size), stride = State::stride(layer.head_size);
        for (; num_rows > 0; num_rows -= MAX_ROWS) {
            some(num_rows, query, chunk, layer, positions, states);
            query += MAX_ROWS * width;
            positions += MAX_ROWS;
            states += MAX_ROWS * stride;
        }
    }

    static void some(
        int64_t num_rows, const Query* query, const Chunk& chunk, const Layer& layer, const int64_t* positions,
        float* states) {
        switch (num_rows) {
            case 1: attend_together<KV, 1>(query, chunk, layer, positions, states); break;
            case 2: attend_together<KV, 2>(query, chunk, layer, positions, states); break;
            case 3: attend_together<KV, 3>(query, chunk, layer, positions, states); break;
            case 4: attend_together<KV, 4>(query, chunk, layer, positions, states); break;
            case 5: attend_together<KV, 5>(query, chunk, layer, positions, states); break;
            case 6: attend_together<KV, 6>(query, chunk, layer, positions, states); break;
            case 7: attend_together<KV, 7>(query, chunk, layer, positions, states); break;
            default: attend_together<KV, 8>(query, chunk, layer, positions, states); break;
        }
    }
};

}  // namespace CK_NS
