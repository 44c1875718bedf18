// Products of many rows with a weight in blocks: it is widened to bfloat16, some panels at a time, for tiles.
//
// Letters: T block type.
#pragma once
#include "block_codes.h"
#include "block_product.h"
#include "packed_product.h"

#if CK_LEVEL >= CK_AMX

namespace CK_NS {

template <int N>
static inline I shifted(I words) {
    if (N >= 0) return left<(N > 0 ? N : 0)>(words);
    return right<(N < 0 ? -N : 0)>(words);
}

// How codes of up to eight bits become numbers: moved to the upper bits of a fraction, one is 256 and itself.
struct Widening {
    V scale, least;
    I mask;

    Widening(V scale, V least, int bits) : scale(scale), mask(all_words(((1 << bits) - 1) << 15)) {
        this->least = fma(scale, broadcast(-256.0f), least);
    }
    // Of the codes that a shift brings to bit 15.
    template <int N>
    I rounded(I words) const {
        V number = (V)_mm512_ternarylogic_epi32(shifted<N>(words), mask, (I)broadcast(256.0f), 0xea);
        return add((I)fma(number, scale, least), all_words(0x8000));
    }
    // Two inputs side by side.
    template <int EVEN, int ODD>
    void store(bf16* to, I words) const {
        I even = right<16>(rounded<EVEN>(words)), odd = rounded<ODD>(words);
        _mm512_store_si512(to, _mm512_ternarylogic_epi32(odd, all_words(int(0xffff0000)), even, 0xea));
    }
};

template <class T>
static inline void widen_brick(const uint8_t* brick, const Scales& scales, bf16* to) {
    const V low = T::has_min ? scales.least : mul(scales.first, broadcast(float(-T::OFFSET)));
    const V high = T::has_min ? scales.least : mul(scales.second, broadcast(float(-T::OFFSET)));
    const Widening first(scales.first, low, T::BITS), second(scales.second, high, T::BITS);
    if (T::BITS == 4) {
        for (int v = 0; v < 4; ++v, to += 2 * BLOCK) {
            I words = load_bytes(brick + v * 64);
            first.template store<15, 7>(to, words);
            first.template store<-1, -9>(to + BLOCK, words);
            second.template store<11, 3>(to + 8 * BLOCK, words);
            second.template store<-5, -13>(to + 9 * BLOCK, words);
        }
        return;
    }
    I codes[8];
    unpack<T>(brick, 0, codes);
    for (int s = 0; s < 8; ++s, to += 2 * BLOCK) {
        const Widening& half = s < 4 ? first : second;
        half.template store<15, 7>(to, codes[s]);
        half.template store<-1, -9>(to + BLOCK, codes[s]);
    }
}

// Some bricks of a panel, as packed_product.h has its blocks.
template <class T>
static inline void widen_bricks(const uint8_t* panel, int64_t bricks, int64_t begin, int64_t end, bf16* out) {
    for (int64_t brick = begin; brick < end; ++brick, out += BLOCK_ELEMENTS) {
        ask_for<T>(panel, brick);
        widen_brick<T>(panel + brick * T::brick_bytes, scales_of<T>(T::scales(panel, bricks), brick, 0), out);
    }
}

static Product plain_product(const BlockProduct& product) {
    Product plain;
    plain.out = product.out;
    plain.out_stride = product.out_stride;
    plain.input = product.input;
    plain.input_stride = product.input_stride;
    plain.weight = nullptr;
    plain.bias = product.bias;
    plain.rows = product.rows;
    plain.blocks = product.bricks();
    plain.outputs = product.outputs;
    return plain;
}

// So many bricks are widened before they are multiplied: they are still in the inner cache, and no longer on their way.
static const int64_t BRICKS_AT_ONCE = 6;

// Up to 32 rows by two panels; sums stay in the tiles 0 to 3. LOWER: there are more than 16 rows.
template <class T, bool LOWER>
static void tile_pair(const BlockProduct& product, const uint8_t* left, const uint8_t* right, float (*sums)[256]) {
    alignas(64) bf16 wide[2][BRICKS_AT_ONCE * BLOCK_ELEMENTS];
    const int64_t bricks = product.bricks(), stride = product.input_stride * 2;
    const bf16 *upper = product.input, *lower = upper + 16 * product.input_stride;
    zero_square();
    for (int64_t begin = 0; begin < bricks; begin += BRICKS_AT_ONCE) {
        int64_t end = begin + BRICKS_AT_ONCE < bricks ? begin + BRICKS_AT_ONCE : bricks;
        widen_bricks<T>(left, bricks, begin, end, wide[0]);
        widen_bricks<T>(right, bricks, begin, end, wide[1]);
        for (int64_t brick = begin; brick < end; ++brick) {
            _tile_loadd(6, wide[0] + (brick - begin) * BLOCK_ELEMENTS, 64);
            _tile_loadd(4, upper + brick * BLOCK, stride);
            _tile_loadd(7, wide[1] + (brick - begin) * BLOCK_ELEMENTS, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (!LOWER) continue;
            _tile_loadd(5, lower + brick * BLOCK, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    store_square(sums);
}

template <class T>
static void tile_range_at_once(const BlockProduct& product, int64_t begin, int64_t end) {
    alignas(64) float sums[4][256];
    const Product plain = plain_product(product);
    const int upper = product.rows < 16 ? int(product.rows) : 16, lower = int(product.rows) - upper;
    const int64_t size = T::panel_bytes(product.bricks());
    configure(upper, lower);
    for (int64_t panel = begin; panel < end; panel += 2) {
        const uint8_t *left = product.weight + panel * size, *right = panel + 1 < end ? left + size : left;
        if (lower) tile_pair<T, true>(product, left, right, sums);
        else tile_pair<T, false>(product, left, right, sums);
        if (panel + 1 < end) {
            finish_tiles(plain, 0, upper, panel, sums[0], sums[1]);
            finish_tiles(plain, 16, lower, panel, sums[2], sums[3]);
        } else {
            finish_tile(plain, 0, upper, panel, sums[0]);
            finish_tile(plain, 16, lower, panel, sums[2]);
        }
    }
    _tile_release();
}

template <class T>
static void tile_range_widened(const BlockProduct& product, int64_t begin, int64_t end) {
    if (product.rows <= 32) {
        tile_range_at_once<T>(product, begin, end);
        return;
    }
    const int64_t bricks = product.bricks(), size = bricks * BLOCK_ELEMENTS;
    bf16* wide = static_cast<bf16*>(ck_scratch((end - begin) * size * 2));
    for (int64_t panel = begin; panel < end; ++panel)
        widen_bricks<T>(product.weight + panel * T::panel_bytes(bricks), bricks, 0, bricks, wide + (panel - begin) * size);
    Product plain = plain_product(product);
    plain.weight = wide - begin * size;
    range(plain, begin, end);
}

}  // namespace CK_NS
#endif
