// Codes and scales of weights in blocks (see block_types.h), in vectors.
#pragma once
#include "block_types.h"
#include "vectors.h"

namespace CK_NS {

#if CK_LEVEL >= CK_AVX512
// 16 where the mask has a bit.
static inline I sixteens(const uint8_t* mask) {
    uint64_t bits;
    __builtin_memcpy(&bits, mask, 8);
    return _mm512_maskz_set1_epi8(bits, 16);
}
#else
static inline I sixteens(const uint8_t* mask) {
    const I spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3,
                                      3, 3, 3, 3, 3);
    const I bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    int32_t bits;
    __builtin_memcpy(&bits, mask, 4);
    I each = _mm256_shuffle_epi8(all_words(bits), spread) & bit;
    return _mm256_cmpeq_epi8(each, bit) & all_bytes(16);
}
#endif

// Lanes that a vector holds, and in how many parts a panel is computed.
static const int PART = WIDTH, PARTS = int(LANES) / WIDTH;

// sums + products of four unsigned codes and four signed values a lane.
template <int BITS>
static inline I dot4(I sums, I codes, I values) {
#if CK_LEVEL >= CK_AVX512_VNNI_BF16
    return _mm512_dpbusd_epi32(sums, codes, values);
#else
    const I ones = CK_MM(set1_epi16)(1);
    if (BITS < 8) return add(sums, CK_MM(madd_epi16)(CK_MM(maddubs_epi16)(codes, values), ones));
    // Two products of eight bits don't fit sixteen: the highest bit goes apart.
    I low = codes & all_bytes(127), high = CK_MM(srli_epi16)(codes, 7) & all_bytes(1);
    I below = CK_MM(madd_epi16)(CK_MM(maddubs_epi16)(low, values), ones);
    I above = CK_MM(madd_epi16)(CK_MM(maddubs_epi16)(high, values), ones);
    return add(sums, add(below, left<7>(above)));
#endif
}

// The codes of a brick by step, those lanes of it that make a part.
template <class T>
static inline void unpack(const uint8_t* brick, int part, I codes[8]) {
    const int shift = part * PART * 4;
    if (T::BITS == 8) {
        for (int s = 0; s < 8; ++s) codes[s] = load_bytes(brick + s * 64 + shift);
        return;
    }
    const I nibble = all_bytes(15);
    for (int v = 0; v < 4; ++v) {
        I raw = load_bytes(brick + v * 64 + shift);
        codes[v] = raw & nibble;
        codes[v + 4] = right<4>(raw) & nibble;
    }
    if (T::BITS == 5)
        for (int s = 0; s < 8; ++s) codes[s] |= sixteens(brick + 256 + s * 8 + part * PART / 2);
    if (T::BITS == 6) {
        const I upper = all_bytes(48);
        for (int v = 0; v < 2; ++v) {
            I raw = load_bytes(brick + 256 + v * 64 + shift);
            codes[4 * v] |= left<4>(raw) & upper;
            codes[4 * v + 1] |= left<2>(raw) & upper;
            codes[4 * v + 2] |= raw & upper;
            codes[4 * v + 3] |= right<2>(raw) & upper;
        }
    }
}

// Have what follows a brick by AHEAD bytes on its way: a thread that starts with a panel would wait for memory.
static const int64_t AHEAD = 2560;

template <class T>
static inline void ask_for(const uint8_t* panel, int64_t brick) {
    const int64_t bytes = T::brick_bytes + T::record_bytes + T::super_bytes / SUPER;
    const char* at = (const char*)panel + brick * bytes + AHEAD;
    for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T0);
}

// Of a brick and part: the scale of each half, and what is added for each input.
struct Scales {
    V first, second, least;
};

template <class T>
static inline Scales scales_of(const uint8_t* scales, int64_t brick, int part) {
    const int lane = part * PART;
    const uint8_t *super = T::super(scales, brick), *record = T::record(scales, brick);
    Scales found;
    found.least = zero();
    if (T::SCALING == SCALE || T::SCALING == SCALE_MIN) found.first = found.second = load_halves(record + 2 * lane);
    if (T::SCALING == SCALE_MIN) found.least = load_halves(record + 32 + 2 * lane);
    if (T::SCALING == K_MIN) {
        found.first = found.second = mul(load_halves(super + 2 * lane), load(record + lane));
        found.least = sub(zero(), mul(load_halves(super + 32 + 2 * lane), load(record + 16 + lane)));
    }
    if (T::SCALING == K_HALVES) {
        V scale = load_halves(super + 2 * lane);
        found.first = mul(scale, load((const int8_t*)record + lane));
        found.second = mul(scale, load((const int8_t*)record + 16 + lane));
    }
    return found;
}

}  // namespace CK_NS
