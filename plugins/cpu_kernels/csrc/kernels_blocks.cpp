// Products of bfloat16 rows with a weight in blocks (see block_types.h).
//
// For few rows a row is rounded to eight bits for each 32 inputs, and codes are multiplied as whole numbers: a weight
// is read once and not widened. For many rows 16 or more outputs at a time are widened to bfloat16 for the tiles.
//
// Letters: T block type, R rows.
#include "block_types.h"
#include "packed_product.h"

namespace CK_NS {

#if CK_LEVEL >= CK_AVX512
typedef __m512i I;
static inline I load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline I all_words(int32_t value) { return _mm512_set1_epi32(value); }
static inline I all_bytes(int value) { return _mm512_set1_epi8(char(value)); }
static inline I both(I a, I b) { return _mm512_and_si512(a, b); }
static inline I either(I a, I b) { return _mm512_or_si512(a, b); }
template <int N> static inline I right(I a) { return _mm512_srli_epi32(a, N); }
template <int N> static inline I left(I a) { return _mm512_slli_epi32(a, N); }
static inline V to_floats(I a) { return _mm512_cvtepi32_ps(a); }
static inline V halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline V unsigned_bytes(const uint8_t* p) {
    return to_floats(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
static inline V signed_bytes(const uint8_t* p) {
    return to_floats(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
static inline I plus(I a, I b) { return _mm512_add_epi32(a, b); }
static inline float largest_of(V v) { return _mm512_reduce_max_ps(v); }
static inline void store_codes(int8_t* to, V whole) {
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole)));
}
// 16 where the mask has a bit.
static inline I sixteens(const uint8_t* mask) {
    uint64_t bits;
    __builtin_memcpy(&bits, mask, 8);
    return _mm512_maskz_set1_epi8(bits, 16);
}
#else
typedef __m256i I;
static inline I load_bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline I all_words(int32_t value) { return _mm256_set1_epi32(value); }
static inline I all_bytes(int value) { return _mm256_set1_epi8(char(value)); }
static inline I both(I a, I b) { return _mm256_and_si256(a, b); }
static inline I either(I a, I b) { return _mm256_or_si256(a, b); }
template <int N> static inline I right(I a) { return _mm256_srli_epi32(a, N); }
template <int N> static inline I left(I a) { return _mm256_slli_epi32(a, N); }
static inline V to_floats(I a) { return _mm256_cvtepi32_ps(a); }
static inline V halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline V unsigned_bytes(const uint8_t* p) {
    return to_floats(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
static inline V signed_bytes(const uint8_t* p) {
    return to_floats(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
static inline I plus(I a, I b) { return _mm256_add_epi32(a, b); }
static inline float largest_of(V v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}
static inline void store_codes(int8_t* to, V whole) {
    __m256i words = _mm256_cvtps_epi32(whole);
    __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64((__m128i*)to, _mm_packs_epi16(shorts, shorts));
}
static inline I sixteens(const uint8_t* mask) {
    const I spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3,
                                      3, 3, 3, 3, 3);
    const I bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    int32_t bits;
    __builtin_memcpy(&bits, mask, 4);
    I each = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(each, bit), _mm256_set1_epi8(16));
}
#endif

// Lanes that a vector holds, and in how many parts a panel is computed.
static const int PART = WIDTH, PARTS = int(LANES) / WIDTH;

// sums + products of four unsigned codes and four signed values a lane.
template <int BITS>
static inline I dot4(I sums, I codes, I values) {
#if CK_LEVEL >= CK_AVX512_VNNI_BF16
    return _mm512_dpbusd_epi32(sums, codes, values);
#elif CK_LEVEL >= CK_AVX512
    const I ones = _mm512_set1_epi16(1);
    if (BITS < 8) return plus(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, values), ones));
    // Two products of eight bits don't fit sixteen: the highest bit goes apart.
    I low = both(codes, all_bytes(127)), high = both(_mm512_srli_epi16(codes, 7), all_bytes(1));
    I below = _mm512_madd_epi16(_mm512_maddubs_epi16(low, values), ones);
    I above = _mm512_madd_epi16(_mm512_maddubs_epi16(high, values), ones);
    return plus(sums, plus(below, left<7>(above)));
#else
    const I ones = _mm256_set1_epi16(1);
    if (BITS < 8) return plus(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, values), ones));
    I low = both(codes, all_bytes(127)), high = both(_mm256_srli_epi16(codes, 7), all_bytes(1));
    I below = _mm256_madd_epi16(_mm256_maddubs_epi16(low, values), ones);
    I above = _mm256_madd_epi16(_mm256_maddubs_epi16(high, values), ones);
    return plus(sums, plus(below, left<7>(above)));
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
        codes[v] = both(raw, nibble);
        codes[v + 4] = both(right<4>(raw), nibble);
    }
    if (T::BITS == 5)
        for (int s = 0; s < 8; ++s) codes[s] = either(codes[s], sixteens(brick + 256 + s * 8 + part * PART / 2));
    if (T::BITS == 6) {
        const I upper = all_bytes(48);
        for (int v = 0; v < 2; ++v) {
            I raw = load_bytes(brick + 256 + v * 64 + shift);
            codes[4 * v] = either(codes[4 * v], both(left<4>(raw), upper));
            codes[4 * v + 1] = either(codes[4 * v + 1], both(left<2>(raw), upper));
            codes[4 * v + 2] = either(codes[4 * v + 2], both(raw, upper));
            codes[4 * v + 3] = either(codes[4 * v + 3], both(right<2>(raw), upper));
        }
    }
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
    if (T::SCALING == SCALE || T::SCALING == SCALE_MIN) found.first = found.second = halves(record + 2 * lane);
    if (T::SCALING == SCALE_MIN) found.least = halves(record + 32 + 2 * lane);
    if (T::SCALING == K_MIN) {
        found.first = found.second = mul(halves(super + 2 * lane), unsigned_bytes(record + lane));
        found.least = sub(zero(), mul(halves(super + 32 + 2 * lane), unsigned_bytes(record + 16 + lane)));
    }
    if (T::SCALING == K_HALVES) {
        V scale = halves(super + 2 * lane);
        found.first = mul(scale, signed_bytes(record + lane));
        found.second = mul(scale, signed_bytes(record + 16 + lane));
    }
    return found;
}

// 32 inputs of a row, rounded: their scale, and the sums of their codes.
struct Rounded {
    float scale, scaled_sum;
    int32_t first_sum, second_sum;
};

struct BlockProduct {
    bf16* out;
    int64_t out_stride;
    const bf16* input;
    int64_t input_stride;
    const bf16* bias;
    const uint8_t* weight;
    int64_t rows, inputs, outputs;
    const int8_t* values;  // rounded rows
    const Rounded* rounded;

    int64_t bricks() const { return inputs / BRICK; }
    int64_t panels() const { return (outputs + LANES - 1) / LANES; }
};

// Below it a quotient could be beyond all numbers; what is that small is nothing.
static const float LEAST_ROUNDED = 1e-30f;

static void round_row(const bf16* row, int64_t bricks, int8_t* values, Rounded* rounded) {
    for (int64_t brick = 0; brick < bricks; ++brick, row += BRICK, values += BRICK) {
        V wide[BRICK / WIDTH], largest = zero();
        for (int i = 0; i < BRICK / WIDTH; ++i) {
            wide[i] = load(row + i * WIDTH);
            largest = vmax(largest, vmax(wide[i], sub(zero(), wide[i])));
        }
        float most = largest_of(largest), inverse = most > LEAST_ROUNDED ? 127.0f / most : 0.0f, scale = most / 127.0f;
        float sums[2] = {0, 0};
        for (int i = 0; i < BRICK / WIDTH; ++i) {
            V code = round_whole(mul(wide[i], broadcast(inverse)));
            store_codes(values + i * WIDTH, code);
            sums[i * WIDTH / 16] += sum(code);
        }
        float whole = sums[0] + sums[1];
        if (whole == whole) rounded[brick] = {scale, scale * whole, int32_t(sums[0]), int32_t(sums[1])};
        else rounded[brick] = {whole, whole, 0, 0};  // no number among the inputs makes no number of the results
    }
}

static inline int32_t four(const int8_t* values) {
    int32_t word;
    __builtin_memcpy(&word, values, 4);
    return word;
}

template <class T, int R>
static void dot_panel(const BlockProduct& product, int64_t row, int64_t panel) {
    const int64_t bricks = product.bricks();
    const uint8_t* codes_at = product.weight + panel * T::panel_bytes(bricks);
    const uint8_t* scales_at = T::scales(codes_at, bricks);
    const int8_t* values = product.values + row * product.inputs;
    const Rounded* rounded = product.rounded + row * bricks;
    V sums[PARTS][R];
    for (int part = 0; part < PARTS; ++part)
        for (int r = 0; r < R; ++r) sums[part][r] = zero();
    for (int64_t brick = 0; brick < bricks; ++brick) {
        const uint8_t* at = codes_at + brick * T::brick_bytes;
        for (int ahead = 0; ahead < int(T::brick_bytes); ahead += 64) _mm_prefetch((const char*)at + 2048 + ahead, _MM_HINT_T0);
        for (int part = 0; part < PARTS; ++part) {
            I codes[8];
            unpack<T>(at, part, codes);
            Scales scale = scales_of<T>(scales_at, brick, part);
            for (int r = 0; r < R; ++r) {
                const int8_t* a = values + r * product.inputs + brick * BRICK;
                const Rounded& info = rounded[r * bricks + brick];
                I first = all_words(-T::OFFSET * info.first_sum), second = all_words(-T::OFFSET * info.second_sum);
                for (int s = 0; s < 4; ++s) {
                    first = dot4<T::BITS>(first, codes[s], all_words(four(a + 4 * s)));
                    second = dot4<T::BITS>(second, codes[s + 4], all_words(four(a + 16 + 4 * s)));
                }
                V total;
                if (T::SCALING == K_HALVES)
                    total = fma(to_floats(first), scale.first, mul(to_floats(second), scale.second));
                else
                    total = mul(to_floats(plus(first, second)), scale.first);
                sums[part][r] = fma(total, broadcast(info.scale), sums[part][r]);
                if (T::has_min) sums[part][r] = fma(scale.least, broadcast(info.scaled_sum), sums[part][r]);
            }
        }
    }
    alignas(64) float line[LANES];
    for (int r = 0; r < R; ++r) {
        for (int part = 0; part < PARTS; ++part) store(line + part * PART, sums[part][r]);
        finish_panel(product.out + (row + r) * product.out_stride, product.bias, product.outputs, panel, line);
    }
}

template <class T>
static void dot_panels(const BlockProduct& product, int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
        int64_t row = 0;
        for (; row + 4 <= product.rows; row += 4) dot_panel<T, 4>(product, row, panel);
        switch (product.rows - row) {
            case 1: dot_panel<T, 1>(product, row, panel); break;
            case 2: dot_panel<T, 2>(product, row, panel); break;
            case 3: dot_panel<T, 3>(product, row, panel); break;
        }
    }
}

#if CK_LEVEL >= CK_AMX
// A panel as packed_product.h has it.
template <class T>
static void widen_panel(const BlockProduct& product, int64_t panel, bf16* out) {
    const int64_t bricks = product.bricks();
    const uint8_t* codes_at = product.weight + panel * T::panel_bytes(bricks);
    const uint8_t* scales_at = T::scales(codes_at, bricks);
    // Of 16 first and 16 second inputs, first and second in turn.
    const __m512i in_turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                             21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const I byte = all_words(255);
    for (int64_t brick = 0; brick < bricks; ++brick) {
        I codes[8];
        unpack<T>(codes_at + brick * T::brick_bytes, 0, codes);
        Scales scale = scales_of<T>(scales_at, brick, 0);
        for (int s = 0; s < 8; ++s) {
            V each = s < 4 ? scale.first : scale.second;
            V least = T::has_min ? scale.least : mul(each, broadcast(float(-T::OFFSET)));
            V a = fma(to_floats(both(codes[s], byte)), each, least);
            V b = fma(to_floats(both(right<8>(codes[s]), byte)), each, least);
            V c = fma(to_floats(both(right<16>(codes[s]), byte)), each, least);
            V d = fma(to_floats(right<24>(codes[s])), each, least);
            __m512i ab = _mm512_permutexvar_epi16(in_turn, (__m512i)_mm512_cvtne2ps_pbh(b, a));
            __m512i cd = _mm512_permutexvar_epi16(in_turn, (__m512i)_mm512_cvtne2ps_pbh(d, c));
            bf16* to = out + brick * BLOCK_ELEMENTS + 2 * s * 32;
            _mm512_store_si512(to, ab);
            _mm512_store_si512(to + 32, cd);
        }
    }
}

template <class T>
static void tile_panels(const BlockProduct& product, int64_t begin, int64_t end) {
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

// From how many rows on widening a weight costs less than multiplying its codes row by row; measured.
static const int64_t MANY_ROWS = 11;
#else
static const int64_t MANY_ROWS = int64_t(1) << 62;
#endif

template <class T>
static void panels(const BlockProduct& product, int64_t begin, int64_t end) {
#if CK_LEVEL >= CK_AMX
    if (product.rows >= MANY_ROWS) {
        tile_panels<T>(product, begin, end);
        return;
    }
#endif
    dot_panels<T>(product, begin, end);
}

static void round_rows(BlockProduct& product) {
    int64_t bricks = product.bricks(), size = (product.rows * product.inputs + 63) / 64 * 64;
    uint8_t* memory = static_cast<uint8_t*>(ck_scratch(size + product.rows * bricks * int64_t(sizeof(Rounded))));
    int8_t* values = reinterpret_cast<int8_t*>(memory);
    Rounded* rounded = reinterpret_cast<Rounded*>(memory + size);
    parallel_ranges(product.rows, 32768 / product.inputs + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            round_row(product.input + row * product.input_stride, bricks, values + row * product.inputs,
                      rounded + row * bricks);
    });
    product.values = values;
    product.rounded = rounded;
}

}  // namespace CK_NS

using namespace CK_NS;

// out [T, O], input [T, E], packed weight, bias [O] or null, segments (count × type, rows, first byte), T, E, O,
// count, input_stride, out_stride
CK_KERNEL(blocks_linear) {
    BlockProduct whole;
    whole.out = pointer<bf16>(args[0]);
    whole.input = pointer<bf16>(args[1]);
    const uint8_t* weight = pointer<uint8_t>(args[2]);
    whole.bias = pointer<bf16>(args[3]);
    const int64_t* segments = pointer<int64_t>(args[4]);
    whole.rows = args[5].i;
    whole.inputs = args[6].i;
    int64_t num_outputs = args[7].i, count = args[8].i;
    whole.input_stride = args[9].i;
    whole.out_stride = args[10].i;
    whole.values = nullptr;
    whole.rounded = nullptr;
    if (whole.rows == 0 || num_outputs == 0) return;
    if (whole.rows < MANY_ROWS) round_rows(whole);
    // Tasks are equal shares of each segment's panels.
    int64_t threads = ck_num_threads(), total = (num_outputs + LANES - 1) / LANES;
    int64_t share = threads == 1 ? 16 : total / (threads * 4);
    share = share < 2 ? 2 : share > 16 ? 16 : share;
    int num_tasks = 0;
    for (int64_t s = 0; s < count; ++s) num_tasks += int(((segments[3 * s + 1] + LANES - 1) / LANES + share - 1) / share);
    parallel(num_tasks, [&](int task) {
        int64_t first_output = 0;
        for (int64_t s = 0; s < count; ++s) {
            int64_t outputs = segments[3 * s + 1], all = (outputs + LANES - 1) / LANES;
            int tasks = int((all + share - 1) / share);
            if (task < tasks) {
                BlockProduct product = whole;
                product.out += first_output;
                if (product.bias) product.bias += first_output;
                product.outputs = outputs;
                product.weight = weight + segments[3 * s + 2];
                int64_t begin = task * share, end = begin + share < all ? begin + share : all;
                with_type(segments[3 * s], [&](auto type) { panels<decltype(type)>(product, begin, end); });
                return;
            }
            task -= tasks;
            first_output += outputs;
        }
    });
}
