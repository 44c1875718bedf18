// Products of rounded rows with a weight in blocks, in dot products of whole numbers: a weight is read once, not widened.
//
// Letters: T block type, R rows, P panels.
#pragma once
#include "block_codes.h"
#include "block_product.h"
#include "packed_product.h"

namespace CK_NS {

// So many panels at once, each far from the next: two streams wait less for memory than one.
static const int STREAMS = 2;

static inline int32_t four(const int8_t* values) {
    int32_t word;
    __builtin_memcpy(&word, values, 4);
    return word;
}

// The part of a brick that a vector holds times R rows: all rows together, so that none waits for its last product.
template <class T, int R>
static inline void dot_part(
    const BlockProduct& product, const int8_t* values, const Rounded* rounded, const I* codes, const Scales& scale, V* sums) {
    const bool halves = T::SCALING == K_HALVES;
    const int64_t bricks = product.bricks();
    I first[R], second[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        const Rounded& info = rounded[r * bricks];
        first[r] = all_words(-T::OFFSET * (halves ? info.first_sum : info.first_sum + info.second_sum));
        second[r] = all_words(halves ? -T::OFFSET * info.second_sum : 0);
    }
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const int8_t* a = values + r * product.inputs + 4 * s;
            first[r] = dot4<T::BITS>(first[r], codes[s], all_words(four(a)));
            second[r] = dot4<T::BITS>(second[r], codes[s + 4], all_words(four(a + 16)));
        }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        const Rounded& info = rounded[r * bricks];
        V total = halves ? fma(to_floats(first[r]), scale.first, mul(to_floats(second[r]), scale.second))
                         : mul(to_floats(add(first[r], second[r])), scale.first);
        sums[r] = fma(total, broadcast(info.scale), sums[r]);
        if (T::has_min) sums[r] = fma(scale.least, broadcast(info.scaled_sum), sums[r]);
    }
}

// R rows by P panels that are ``apart`` from each other.
template <class T, int R, int P>
static void dot_panels(const BlockProduct& product, int64_t row, int64_t panel, int64_t apart) {
    const int64_t bricks = product.bricks(), size = T::panel_bytes(bricks);
    const uint8_t* first = product.weight + panel * size;
    const int8_t* values = product.values + row * product.inputs;
    const Rounded* rounded = product.rounded + row * bricks;
    alignas(64) V sums[P][PARTS][R];
    for (int p = 0; p < P; ++p)
        for (int part = 0; part < PARTS; ++part)
            for (int r = 0; r < R; ++r) sums[p][part][r] = zero();
    for (int64_t brick = 0; brick < bricks; ++brick, values += BRICK, ++rounded)
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
            const uint8_t* at = first + p * apart * size;
            ask_for<T>(at, brick);
            for (int part = 0; part < PARTS; ++part) {
                I codes[8];
                unpack<T>(at + brick * T::brick_bytes, part, codes);
                Scales scale = scales_of<T>(T::scales(at, bricks), brick, part);
                dot_part<T, R>(product, values, rounded, codes, scale, sums[p][part]);
            }
        }
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < R; ++r) {
            alignas(64) float line[LANES];
            for (int part = 0; part < PARTS; ++part) store(line + part * PART, sums[p][part][r]);
            finish_panel(product.out + (row + r) * product.out_stride, product.bias, product.outputs, panel + p * apart, line);
        }
}

template <class T, int P>
static void dot_rows(const BlockProduct& product, int64_t panel, int64_t apart) {
    int64_t row = 0;
    for (; row + 4 <= product.rows; row += 4) dot_panels<T, 4, P>(product, row, panel, apart);
    switch (product.rows - row) {
        case 1: dot_panels<T, 1, P>(product, row, panel, apart); break;
        case 2: dot_panels<T, 2, P>(product, row, panel, apart); break;
        case 3: dot_panels<T, 3, P>(product, row, panel, apart); break;
    }
}

template <class T>
static void dot_range(const BlockProduct& product, int64_t begin, int64_t end) {
    int64_t apart = (end - begin) / STREAMS;
    for (int64_t panel = begin; panel < begin + apart; ++panel) dot_rows<T, STREAMS>(product, panel, apart);
    for (int64_t panel = begin + apart * STREAMS; panel < end; ++panel) dot_rows<T, 1>(product, panel, 1);
}

}  // namespace CK_NS
