// Products of bfloat16 rows with panels of a packed weight, in dot products or on tiles.
//
// A packed weight [O, E] is panels of 16 outputs; a panel is blocks of 32 inputs; a block is 16 pairs of inputs by 16
// outputs by 2: what a dot product of pairs reads in one load, and what a tile register takes as its second operand.
// Outputs are filled up to 16 and inputs to 32 with zeros. A panel is one piece of memory, read from start to end.
//
// Letters: R rows of a block, P panels side by side.
#pragma once
#include "scratch.h"
#include "tile_shapes.h"
#include "vectors.h"

namespace CK_NS {

static const int64_t PANEL = 16, BLOCK = 32, BLOCK_ELEMENTS = PANEL * BLOCK;

struct Product {
    bf16* out;
    int64_t out_stride;
    const bf16* input;  // rows filled up to whole blocks
    int64_t input_stride;
    const bf16* weight;
    const bf16* bias;
    int64_t rows, blocks, outputs;

    int64_t panels() const { return (outputs + PANEL - 1) / PANEL; }
    const bf16* panel(int64_t index) const { return weight + index * blocks * BLOCK_ELEMENTS; }
};

// 16 sums of one row and panel, as they leave.
static inline void finish_panel(bf16* out_row, const bf16* bias, int64_t outputs, int64_t panel, const float* sums) {
    int64_t at = panel * PANEL;
    int count = int(outputs - at < PANEL ? outputs - at : PANEL);
    bf16* out = out_row + at;
    for (int i = 0; i < count; i += WIDTH) {
        int n = count - i < WIDTH ? count - i : WIDTH;
        V v = load(sums + i);
        if (bias) v = add(v, load_part(bias + at + i, n));
        if (n == WIDTH) store(out + i, v);
        else store_part(out + i, v, n);
    }
}

static inline void finish(const Product& product, int64_t row, int64_t panel, const float* sums) {
    finish_panel(product.out + row * product.out_stride, product.bias, product.outputs, panel, sums);
}

#if CK_LEVEL >= CK_AVX512_VNNI_BF16
template <int R, int P>
static void dot_block(const Product& product, int64_t row, int64_t panel) {
    __m512 sums[R][P];
    const bf16 *weights[P], *rows[R];
    for (int p = 0; p < P; ++p) weights[p] = product.panel(panel + p);
    for (int r = 0; r < R; ++r) {
        rows[r] = product.input + (row + r) * product.input_stride;
        for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps();
    }
    int64_t pairs = product.blocks * 16;
    for (int64_t pair = 0; pair < pairs; ++pair) {
        __m512bh weight[P];
        for (int p = 0; p < P; ++p) {
            weight[p] = (__m512bh)_mm512_loadu_si512(weights[p] + pair * BLOCK);
            _mm_prefetch((const char*)(weights[p] + pair * BLOCK + 1024), _MM_HINT_T0);
        }
        for (int r = 0; r < R; ++r) {
            __m512bh value = (__m512bh)_mm512_set1_epi32(*(const int*)(rows[r] + 2 * pair));
            for (int p = 0; p < P; ++p) sums[r][p] = _mm512_dpbf16_ps(sums[r][p], weight[p], value);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) finish(product, row + r, panel + p, (const float*)&sums[r][p]);
}
#else
template <int R, int P>
static void dot_block(const Product& product, int64_t row, int64_t panel) {
    static const int PARTS = int(PANEL) / WIDTH;
    V sums[R][P * PARTS];
    const bf16 *weights[P], *rows[R];
    for (int p = 0; p < P; ++p) weights[p] = product.panel(panel + p);
    for (int r = 0; r < R; ++r) {
        rows[r] = product.input + (row + r) * product.input_stride;
        for (int p = 0; p < P * PARTS; ++p) sums[r][p] = zero();
    }
    int64_t pairs = product.blocks * 16;
    for (int64_t pair = 0; pair < pairs; ++pair)
        for (int p = 0; p < P * PARTS; ++p) {
            V both = load((const float*)(weights[p / PARTS] + pair * BLOCK) + p % PARTS * WIDTH);
            V even = low_of_pairs(both), odd = high_of_pairs(both);
            for (int r = 0; r < R; ++r) {
                sums[r][p] = fma(even, broadcast(widen(rows[r][2 * pair])), sums[r][p]);
                sums[r][p] = fma(odd, broadcast(widen(rows[r][2 * pair + 1])), sums[r][p]);
            }
        }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) finish(product, row + r, panel + p, (const float*)&sums[r][p * PARTS]);
}
#endif

template <int P>
static void dot_panels(const Product& product, int64_t panel) {
    int64_t row = 0;
    for (; row + 4 <= product.rows; row += 4) dot_block<4, P>(product, row, panel);
    switch (product.rows - row) {
        case 1: dot_block<1, P>(product, row, panel); break;
        case 2: dot_block<2, P>(product, row, panel); break;
        case 3: dot_block<3, P>(product, row, panel); break;
    }
}

static void dot_range(const Product& product, int64_t begin, int64_t end) {
    int64_t panel = begin;
    for (; panel + 4 <= end; panel += 4) dot_panels<4>(product, panel);
    for (; panel < end; ++panel) dot_panels<1>(product, panel);
}

#if CK_LEVEL >= CK_AMX
// Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights.
static void configure(int upper, int lower) {
    alignas(64) TileShapes shapes = ALL_FULL;
    shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = uint8_t(upper);
    shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = uint8_t(lower ? lower : 1);
    // The compiler doesn't see that the instruction reads all of it, and may store it later.
    __asm__ volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
}

static void finish_tile(const Product& product, int64_t row, int rows, int64_t panel, const float* sums) {
    for (int r = 0; r < rows; ++r) finish(product, row + r, panel, sums + r * PANEL);
}

// Two panels side by side leave in whole cache lines: halves of many rows would push each other out in between.
static void finish_tiles(const Product& product, int64_t row, int rows, int64_t panel, const float* left, const float* right) {
    int64_t at = panel * PANEL;
    if (product.outputs - at < 2 * PANEL) {
        finish_tile(product, row, rows, panel, left);
        finish_tile(product, row, rows, panel + 1, right);
        return;
    }
    V low = product.bias ? load(product.bias + at) : zero(), high = product.bias ? load(product.bias + at + PANEL) : zero();
    bf16* out = product.out + row * product.out_stride + at;
    for (int r = 0; r < rows; ++r, out += product.out_stride)
        _mm512_storeu_si512(
            out, (__m512i)_mm512_cvtne2ps_pbh(add(load(right + r * PANEL), high), add(load(left + r * PANEL), low)));
}

// So many blocks before their products weights are fetched: the processor's own prefetching doesn't see far enough ahead.
static const int64_t BLOCKS_AHEAD = 4;

// Only the first rows find weights that aren't near yet. With 65 to 192 rows products take longer for it, with fewer and
// with more they take less: measured, a tenth with 32 rows and with 512.
static bool fetches_ahead(const Product& product, int64_t row) {
    return row == 0 && (product.rows <= 64 || product.rows > 192);
}

// Inlined: as a function that has no result the compiler leaves it out.
__attribute__((always_inline)) static inline void fetch_block(const bf16* left, const bf16* right) {
#pragma GCC unroll 16
    for (int64_t at = 0; at < BLOCK_ELEMENTS; at += 32) {
        _mm_prefetch((const char*)(left + at), _MM_HINT_T0);
        _mm_prefetch((const char*)(right + at), _MM_HINT_T0);
    }
}

// Up to 32 rows by two panels, over blocks of inputs from ``begin`` on and before ``end``, added to the sums of those
// before. Weights pass through the inner cache without pushing out the rows, which the next panels need again.
static void tile_square(
    const Product& product, int64_t row, int64_t panel, int64_t begin, int64_t end, float (*sums)[256]) {
    const bf16 *left = product.panel(panel), *right = product.panel(panel + 1);
    const bf16* top = product.input + row * product.input_stride;
    const bf16* bottom = top + 16 * product.input_stride;
    int64_t stride = product.input_stride * 2;
    if (begin == 0) {
        zero_square();
    } else {
        _tile_loadd(0, sums[0], 64);
        _tile_loadd(1, sums[1], 64);
        _tile_loadd(2, sums[2], 64);
        _tile_loadd(3, sums[3], 64);
    }
    bool fetches = fetches_ahead(product, row);
    int64_t to_next_panels = 2 * product.blocks - (end - begin);
    for (int64_t block = begin; block < end; ++block) {
        if (fetches) {
            int64_t ahead = block + BLOCKS_AHEAD < end ? block + BLOCKS_AHEAD : block + BLOCKS_AHEAD + to_next_panels;
            fetch_block(left + ahead * BLOCK_ELEMENTS, right + ahead * BLOCK_ELEMENTS);
        }
        _tile_stream_loadd(6, left + block * BLOCK_ELEMENTS, 64);
        _tile_loadd(4, top + block * BLOCK, stride);
        _tile_stream_loadd(7, right + block * BLOCK_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, bottom + block * BLOCK, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    store_square(sums);
}

// What fits into the inner cache together: so many blocks of 32 rows, of two panels, and the sums of so many panels.
static const int64_t BLOCKS_AT_ONCE = 10, PANELS_AT_ONCE = 8;

// Up to 32 rows by an even number of panels.
static void tile_band(const Product& product, int64_t row, int upper, int lower, int64_t begin, int64_t end) {
    alignas(64) float sums[PANELS_AT_ONCE / 2][4][256];
    // A single band reads each panel once, and best from start to end.
    int64_t parts = product.rows <= 32 ? 1 : (product.blocks + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE;
    for (; begin < end; begin += PANELS_AT_ONCE) {
        int64_t stop = begin + PANELS_AT_ONCE < end ? begin + PANELS_AT_ONCE : end;
        for (int64_t part = 0; part < parts; ++part)
            for (int64_t panel = begin; panel < stop; panel += 2) {
                float(*square)[256] = sums[(panel - begin) / 2];
                tile_square(
                    product, row, panel, product.blocks * part / parts, product.blocks * (part + 1) / parts, square);
                if (part < parts - 1) continue;
                finish_tiles(product, row, upper, panel, square[0], square[1]);
                finish_tiles(product, row + 16, lower, panel, square[2], square[3]);
            }
    }
}

// Up to 16 rows by up to four panels.
template <int P>
static void tile_line(const Product& product, int64_t row, int rows, int64_t panel) {
    const bf16* weight = product.panel(panel);
    int64_t apart = product.blocks * BLOCK_ELEMENTS;
    const bf16* top = product.input + row * product.input_stride;
    int64_t stride = product.input_stride * 2;
    _tile_zero(0);
    if (P > 1) _tile_zero(1);
    if (P > 2) _tile_zero(2);
    if (P > 3) _tile_zero(3);
    for (int64_t block = 0; block < product.blocks; ++block) {
        const bf16* at = weight + block * BLOCK_ELEMENTS;
        _tile_loadd(4, top + block * BLOCK, stride);
        _tile_loadd(6, at, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (P > 1) {
            _tile_loadd(7, at + apart, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (P > 2) {
            _tile_loadd(6, at + 2 * apart, 64);
            _tile_dpbf16ps(2, 4, 6);
        }
        if (P > 3) {
            _tile_loadd(7, at + 3 * apart, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    alignas(64) float sums[4][256];
    _tile_stored(0, sums[0], 64);
    if (P > 1) _tile_stored(1, sums[1], 64);
    if (P > 2) _tile_stored(2, sums[2], 64);
    if (P > 3) _tile_stored(3, sums[3], 64);
    for (int p = 0; p < P; ++p) finish_tile(product, row, rows, panel + p, sums[p]);
}

static void tile_range_few(const Product& product, int64_t begin, int64_t end) {
    int rows = int(product.rows);
    configure(rows, rows);
    int64_t panel = begin;
    for (; panel + 4 <= end; panel += 4) tile_line<4>(product, 0, rows, panel);
    for (; panel < end; ++panel) tile_line<1>(product, 0, rows, panel);
    _tile_release();
}

static void tile_range_many(const Product& product, int64_t begin, int64_t end) {
    int64_t whole = product.rows / 32 * 32, even = begin + (end - begin) / 2 * 2;
    int rest = int(product.rows - whole), upper = rest < 16 ? rest : 16, lower = rest - upper;
    if (whole) configure(16, 16);
    for (int64_t row = 0; row < whole; row += 32) {
        tile_band(product, row, 16, 16, begin, even);
        if (even < end) {
            tile_line<1>(product, row, 16, even);
            tile_line<1>(product, row + 16, 16, even);
        }
    }
    if (rest) {
        configure(upper, lower);
        if (lower) tile_band(product, whole, upper, lower, begin, even);
        for (int64_t panel = lower ? even : begin; panel < end; ++panel) tile_line<1>(product, whole, upper, panel);
        if (lower && even < end) {
            configure(lower, lower);
            tile_line<1>(product, whole + 16, lower, even);
        }
    }
    _tile_release();
}
#endif

static const int64_t FEW_ROWS = 4;

static void range(const Product& product, int64_t begin, int64_t end) {
#if CK_LEVEL >= CK_AMX
    if (product.rows > FEW_ROWS) {
        if (product.rows <= 16) tile_range_few(product, begin, end);
        else tile_range_many(product, begin, end);
        return;
    }
#endif
    dot_range(product, begin, end);
}

}  // namespace CK_NS
