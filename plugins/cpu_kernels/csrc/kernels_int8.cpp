// Products in eight bits on both sides: a row of the weight has one scale, and so has a row of inputs, which is rounded
// here. Sums are whole numbers, so that a row's result doesn't depend on how many there are.
//
// Sixteen outputs make a panel: for each four inputs 64 bytes, output by output four codes (what a dot product of bytes
// reads in one load, and sixteen of them a tile); then 16 scales, and 16 sums of codes times 128. Inputs are kept as
// codes plus 128, since the processor multiplies unsigned by signed bytes; those sums come off at the end. Inputs are
// filled up to 64 with zeros.
#include "scratch.h"
#include "tile_shapes.h"
#include "vectors.h"

namespace CK_NS {

static const int64_t LANES = 16, FILL = 64, BLOCK = 32, BLOCK_BYTES = 34;  // of a W8A8 block, which begins with its scale
static const int32_t SHIFT = 128;

static inline int64_t filled(int64_t inputs) { return (inputs + FILL - 1) / FILL * FILL; }
static inline int64_t panel_bytes(int64_t width) { return width * LANES + 2 * 64; }

struct RowProduct {
    bf16* out;
    int64_t out_stride;
    const uint8_t* codes;  // rows of width
    const float* scales;   // one a row
    const uint8_t* weight;
    const bf16* bias;
    int64_t rows, width, outputs;

    const uint8_t* panel(int64_t index) const { return weight + index * panel_bytes(width); }
};

static void finish(const RowProduct& product, int64_t row, int64_t panel, const int32_t* sums) {
    const uint8_t* tail = product.panel(panel) + product.width * LANES;
    const float* scales = reinterpret_cast<const float*>(tail);
    const int32_t* shifts = reinterpret_cast<const int32_t*>(tail + 64);
    int64_t at = panel * LANES;
    int count = int(product.outputs - at < LANES ? product.outputs - at : LANES);
    alignas(64) float line[LANES];
    for (int i = 0; i < LANES; ++i) line[i] = float(sums[i] - shifts[i]) * (scales[i] * product.scales[row]);
    bf16* out = product.out + row * product.out_stride + at;
    for (int i = 0; i < count; i += WIDTH) {
        int n = count - i < WIDTH ? count - i : WIDTH;
        V v = load(line + i);
        if (product.bias) v = add(v, load_part(product.bias + at + i, n));
        if (n == WIDTH) store(out + i, v);
        else store_part(out + i, v, n);
    }
}

#if CK_LEVEL >= CK_AVX512
typedef __m512i I;
static inline I bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline I four(const uint8_t* p) { return _mm512_set1_epi32(*(const int32_t*)p); }
static inline I plus(I a, I b) { return _mm512_add_epi32(a, b); }
static inline void keep(int32_t* p, I a) { _mm512_storeu_si512(p, a); }
#else
typedef __m256i I;
static inline I bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline I four(const uint8_t* p) { return _mm256_set1_epi32(*(const int32_t*)p); }
static inline I plus(I a, I b) { return _mm256_add_epi32(a, b); }
static inline void keep(int32_t* p, I a) { _mm256_storeu_si256((__m256i*)p, a); }
#endif

// sums + products of four unsigned and four signed bytes a lane. Two such products don't fit 16 bits: where there is no
// instruction for it the highest bit goes apart.
static inline I dot(I sums, I inputs, I weights) {
#if CK_LEVEL >= CK_AVX512_VNNI_BF16
    return _mm512_dpbusd_epi32(sums, inputs, weights);
#elif CK_LEVEL >= CK_AVX512
    const I ones = _mm512_set1_epi16(1);
    I low = _mm512_and_si512(inputs, _mm512_set1_epi8(127));
    I high = _mm512_and_si512(_mm512_srli_epi16(inputs, 7), _mm512_set1_epi8(1));
    I below = _mm512_madd_epi16(_mm512_maddubs_epi16(low, weights), ones);
    I above = _mm512_madd_epi16(_mm512_maddubs_epi16(high, weights), ones);
    return plus(sums, plus(below, _mm512_slli_epi32(above, 7)));
#else
    const I ones = _mm256_set1_epi16(1);
    I low = _mm256_and_si256(inputs, _mm256_set1_epi8(127));
    I high = _mm256_and_si256(_mm256_srli_epi16(inputs, 7), _mm256_set1_epi8(1));
    I below = _mm256_madd_epi16(_mm256_maddubs_epi16(low, weights), ones);
    I above = _mm256_madd_epi16(_mm256_maddubs_epi16(high, weights), ones);
    return plus(sums, plus(below, _mm256_slli_epi32(above, 7)));
#endif
}

// R rows by one panel. A single row has four sums of each output, since one would wait for itself.
template <int R>
static void dot_panel(const RowProduct& product, int64_t row, int64_t panel) {
    static const int PARTS = int(LANES) / WIDTH, CHAINS = R == 1 ? 4 : R == 2 ? 2 : 1;
    const uint8_t *weights = product.panel(panel), *codes = product.codes + row * product.width;
    I sums[R][CHAINS][PARTS];
    __builtin_memset(sums, 0, sizeof sums);
    for (int64_t at = 0; at < product.width; at += 4 * CHAINS)
        for (int chain = 0; chain < CHAINS; ++chain) {
            const uint8_t* from = weights + (at + 4 * chain) * LANES;
            _mm_prefetch((const char*)from + 2048, _MM_HINT_T0);
            for (int part = 0; part < PARTS; ++part) {
                I weight = bytes(from + part * WIDTH * 4);
                for (int r = 0; r < R; ++r)
                    sums[r][chain][part] =
                        dot(sums[r][chain][part], four(codes + r * product.width + at + 4 * chain), weight);
            }
        }
    alignas(64) int32_t line[LANES];
    for (int r = 0; r < R; ++r) {
        for (int part = 0; part < PARTS; ++part) {
            I total = sums[r][0][part];
            for (int chain = 1; chain < CHAINS; ++chain) total = plus(total, sums[r][chain][part]);
            keep(line + part * WIDTH, total);
        }
        finish(product, row + r, panel, line);
    }
}

static void dot_panels(const RowProduct& product, int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
        int64_t row = 0;
        for (; row + 4 <= product.rows; row += 4) dot_panel<4>(product, row, panel);
        switch (product.rows - row) {
            case 1: dot_panel<1>(product, row, panel); break;
            case 2: dot_panel<2>(product, row, panel); break;
            case 3: dot_panel<3>(product, row, panel); break;
        }
    }
}

#if CK_LEVEL >= CK_AMX
static const int64_t FEW_ROWS = 4, TILE = 16;

static void finish_tile(const RowProduct& product, int64_t row, int64_t panel, const int32_t* sums) {
    for (int64_t r = 0; r < TILE && row + r < product.rows; ++r) finish(product, row + r, panel, sums + r * LANES);
}

// Two times 16 rows by P panels.
template <int P>
static void tile_square(const RowProduct& product, int64_t row, int64_t panel) {
    const uint8_t *left = product.panel(panel), *right = product.panel(panel + P - 1);
    const uint8_t *top = product.codes + row * product.width, *bottom = top + TILE * product.width;
    bool both = row + TILE < product.rows;
    zero_square();
    for (int64_t at = 0; at < product.width; at += FILL) {
        _tile_loadd(6, left + at * LANES, 64);
        _tile_loadd(4, top + at, product.width);
        _tile_dpbusd(0, 4, 6);
        if (P > 1) {
            _tile_loadd(7, right + at * LANES, 64);
            _tile_dpbusd(1, 4, 7);
        }
        if (both) {
            _tile_loadd(5, bottom + at, product.width);
            _tile_dpbusd(2, 5, 6);
            if (P > 1) _tile_dpbusd(3, 5, 7);
        }
    }
    alignas(64) int32_t sums[4][256];
    store_square(sums);
    finish_tile(product, row, panel, sums[0]);
    if (P > 1) finish_tile(product, row, panel + 1, sums[1]);
    finish_tile(product, row + TILE, panel, sums[2]);
    if (P > 1) finish_tile(product, row + TILE, panel + 1, sums[3]);
}

static void tile_panels(const RowProduct& product, int64_t begin, int64_t end) {
    _tile_loadconfig(&ALL_FULL);
    int64_t panel = begin;
    for (; panel + 2 <= end; panel += 2)
        for (int64_t row = 0; row < product.rows; row += 2 * TILE) tile_square<2>(product, row, panel);
    if (panel < end)
        for (int64_t row = 0; row < product.rows; row += 2 * TILE) tile_square<1>(product, row, panel);
    _tile_release();
}
#endif

static void panels(const RowProduct& product, int64_t begin, int64_t end) {
#if CK_LEVEL >= CK_AMX
    if (product.rows > FEW_ROWS) {
        tile_panels(product, begin, end);
        return;
    }
#endif
    dot_panels(product, begin, end);
}

// A row's codes, plus 128, and its scale; a row with what isn't a number has no number as its scale.
static float round_row(const bf16* input, int64_t inputs, int64_t width, uint8_t* codes) {
    V most = zero(), odd = zero();
    const V sign = broadcast(-0.0f);
    auto look = [&](V v) {
        most = vmax(most, vmax(v, sub(sign, v)));
        odd = fma(v, zero(), odd);
    };
    over(inputs, [&](int64_t at) { look(load(input + at)); },
         [&](int64_t at, int n) { look(load_part(input + at, n)); });
    alignas(64) float each[WIDTH];
    store(each, most);
    float largest = 0, bad = sum(odd);
    for (int i = 0; i < WIDTH; ++i) largest = each[i] > largest ? each[i] : largest;
    bool is_number = bad == 0;
    float scale = largest / 127, factor = is_number && scale > 1e-35f ? 127 / largest : 0;
    for (int64_t at = 0; at < inputs; ++at)
        codes[at] = uint8_t(SHIFT + int32_t(__builtin_rintf(widen(input[at]) * factor)));
    for (int64_t at = inputs; at < width; ++at) codes[at] = uint8_t(SHIFT);
    return is_number ? scale : bad;
}

static void pack_output(const uint8_t* row, int64_t inputs, int64_t lane, uint8_t* panel, int64_t width) {
    int32_t total = 0;
    for (int64_t at = 0; at < width; ++at) {
        int8_t code = row && at < inputs ? int8_t(row[at / BLOCK * BLOCK_BYTES + 2 + at % BLOCK]) : 0;
        panel[at / 4 * 64 + lane * 4 + at % 4] = uint8_t(code);
        total += code;
    }
    uint16_t half = 0;
    if (row) __builtin_memcpy(&half, row, 2);
    float scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
    int32_t shift = total * SHIFT;
    __builtin_memcpy(panel + width * LANES + lane * 4, &scale, 4);
    __builtin_memcpy(panel + width * LANES + 64 + lane * 4, &shift, 4);
}

}  // namespace CK_NS

using namespace CK_NS;

// packed, rows of W8A8 blocks, O, E
CK_KERNEL(pack_int8) {
    uint8_t* packed = pointer<uint8_t>(args[0]);
    const uint8_t* rows = pointer<uint8_t>(args[1]);
    int64_t outputs = args[2].i, inputs = args[3].i, width = filled(inputs);
    parallel_ranges((outputs + LANES - 1) / LANES, 4, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel)
            for (int64_t lane = 0; lane < LANES; ++lane) {
                int64_t output = panel * LANES + lane;
                const uint8_t* row = output < outputs ? rows + output * (inputs / BLOCK * BLOCK_BYTES) : nullptr;
                pack_output(row, inputs, lane, packed + panel * panel_bytes(width), width);
            }
    });
}

// out [T, O], input [T, E], packed weight, bias [O] or null, T, E, O, input_stride, out_stride
CK_KERNEL(int8_linear) {
    RowProduct product;
    product.out = pointer<bf16>(args[0]);
    const bf16* input = pointer<bf16>(args[1]);
    product.weight = pointer<uint8_t>(args[2]);
    product.bias = pointer<bf16>(args[3]);
    product.rows = args[4].i;
    int64_t inputs = args[5].i, input_stride = args[7].i, width = filled(inputs);
    product.width = width;
    product.outputs = args[6].i;
    product.out_stride = args[8].i;
    if (product.rows == 0 || product.outputs == 0) return;
    int64_t room = (product.rows + 31) / 32 * 32;  // tiles read whole
    uint8_t* codes = static_cast<uint8_t*>(ck_scratch(room * width + product.rows * 4));
    float* scales = reinterpret_cast<float*>(codes + room * width);
    parallel_ranges(product.rows, 32768 / width + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            scales[row] = round_row(input + row * input_stride, inputs, width, codes + row * width);
    });
    product.codes = codes;
    product.scales = scales;
    int64_t threads = ck_num_threads(), all = (product.outputs + LANES - 1) / LANES;
    int64_t share = threads == 1 ? 16 : all / (threads * 4) / 2 * 2;
    share = share < 2 ? 2 : share > 16 ? 16 : share;
    parallel(int((all + share - 1) / share), [&](int task) {
        int64_t begin = task * share;
        panels(product, begin, begin + share < all ? begin + share : all);
    });
}

// out [T, E], ids [T], packed weight, T, E, V. Ids beyond the vocabulary are zeros.
CK_KERNEL(int8_embedding) {
    bf16* out = pointer<bf16>(args[0]);
    const int64_t* ids = pointer<int64_t>(args[1]);
    const uint8_t* weight = pointer<uint8_t>(args[2]);
    int64_t rows = args[3].i, inputs = args[4].i, num_ids = args[5].i, width = filled(inputs);
    parallel_ranges(rows, 16384 / width + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            bool known = ids[row] >= 0 && ids[row] < num_ids;
            const uint8_t* panel = weight + (known ? ids[row] / LANES : 0) * panel_bytes(width);
            int64_t lane = known ? ids[row] % LANES : 0;
            float scale = 0;
            if (known) __builtin_memcpy(&scale, panel + width * LANES + lane * 4, 4);
            for (int64_t at = 0; at < inputs; ++at)
                out[row * inputs + at] = narrow(float(int8_t(panel[at / 4 * 64 + lane * 4 + at % 4])) * scale);
        }
    });
}
