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

// A panel as packed_product.h has it.
template <class T>
static void widen_panel(const BlockProduct& product, int64_t panel, bf16* out) {
    const int64_t bricks = product.bricks();
    const uint8_t* at = product.weight + panel * T::panel_bytes(bricks);
    for (int64_t brick = 0; brick < bricks; ++brick, out += BLOCK_ELEMENTS) {
        ask_for<T>(at, brick);
        widen_brick<T>(at + brick * T::brick_bytes, scales_of<T>(T::scales(at, bricks), brick, 0), out);
    }
}

template <class T>
static void tile_range_widened(const BlockProduct& product, int64_t begin, int64_t end) {
    const int64_t size = product.bricks() * BLOCK_ELEMENTS;
    bf16* wide = static_cast<bf16*>(ck_scratch((end - begin) * size * 2));
    for (int64_t panel = begin; panel < end; ++panel) widen_panel<T>(product, panel, wide + (panel - begin) * size);
    Product plain;
    plain.out = product.out;
    plain.out_stride = product.out_stride;
    plain.input = product.input;
    plain.input_stride = product.input_stride;
    plain.weight = wide - begin * size;
    plain.bias = product.bias;
    plain.rows = product.rows;
    plain.blocks = product.bricks();
    plain.outputs = product.outputs;
    range(plain, begin, end);
}

}  // namespace CK_NS
#endif
