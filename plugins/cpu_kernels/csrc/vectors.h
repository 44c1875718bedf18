// Vectors of float32 and bfloat16 in the level's width. V has WIDTH floats.
#pragma once
#include <immintrin.h>

#include "ck.h"

namespace CK_NS {

typedef uint16_t bf16;

static inline float widen(bf16 value) {
    union {
        uint32_t i;
        float f;
    } bits = {uint32_t(value) << 16};
    return bits.f;
}

// To nearest, ties to even; a NaN stays one.
static inline bf16 narrow(float value) {
    union {
        float f;
        uint32_t i;
    } bits = {value};
    if ((bits.i & 0x7fffffffu) > 0x7f800000u) return bf16((bits.i >> 16) | 0x40);
    return bf16((bits.i + 0x7fffu + ((bits.i >> 16) & 1)) >> 16);
}

#if CK_LEVEL >= CK_AVX512
static const int WIDTH = 16;
typedef __m512 V;

static inline V zero() { return _mm512_setzero_ps(); }
static inline V broadcast(float value) { return _mm512_set1_ps(value); }
static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
static inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }
static inline V load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
static inline V load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p); }
static inline void store_part(float* p, V v, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), v); }
static inline float sum(V v) { return _mm512_reduce_add_ps(v); }

static inline V widen16(__m256i raw) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
static inline __m256i narrow16(V v) {
#if CK_LEVEL >= CK_AVX512_VNNI_BF16
    return (__m256i)_mm512_cvtneps_pbh(v);
#else
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff)), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, _mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(rounded);
#endif
}
static inline V load(const bf16* p) { return widen16(_mm256_loadu_si256((const __m256i*)p)); }
static inline void store(bf16* p, V v) { _mm256_storeu_si256((__m256i*)p, narrow16(v)); }
static inline V load_part(const bf16* p, int n) {
    return widen16(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
}
static inline void store_part(bf16* p, V v, int n) {
    _mm256_mask_storeu_epi16(p, __mmask16((1u << n) - 1), narrow16(v));
}
// Of pairs of bfloat16 in 32 bits: the first ones, the second ones.
static inline V low_of_pairs(V v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 16)); }
static inline V high_of_pairs(V v) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(int(0xffff0000))));
}
// 2^n · v for whole n.
static inline V scale_by_power(V v, V n) { return _mm512_scalef_ps(v, n); }
static inline V round_whole(V v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#else
static const int WIDTH = 8;
typedef __m256 V;

static inline V zero() { return _mm256_setzero_ps(); }
static inline V broadcast(float value) { return _mm256_set1_ps(value); }
static inline V add(V a, V b) { return _mm256_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm256_div_ps(a, b); }
static inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
static inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }
static inline V load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
static inline V load_part(const float* p, int n) {
    alignas(32) float part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return _mm256_load_ps(part);
}
static inline void store_part(float* p, V v, int n) {
    alignas(32) float part[8];
    _mm256_store_ps(part, v);
    for (int i = 0; i < n; ++i) p[i] = part[i];
}
static inline float sum(V v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

static inline V widen8(__m128i raw) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
static inline __m128i narrow8(V v) {
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    rounded = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
static inline V load(const bf16* p) { return widen8(_mm_loadu_si128((const __m128i*)p)); }
static inline void store(bf16* p, V v) { _mm_storeu_si128((__m128i*)p, narrow8(v)); }
static inline V load_part(const bf16* p, int n) {
    alignas(16) bf16 part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return widen8(_mm_load_si128((const __m128i*)part));
}
static inline void store_part(bf16* p, V v, int n) {
    alignas(16) bf16 part[8];
    _mm_store_si128((__m128i*)part, narrow8(v));
    for (int i = 0; i < n; ++i) p[i] = part[i];
}
static inline V low_of_pairs(V v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16)); }
static inline V high_of_pairs(V v) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(int(0xffff0000))));
}
static inline V scale_by_power(V v, V n) {
    __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(v, _mm256_castsi256_ps(exponent));
}
static inline V round_whole(V v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#endif

// e^x within two units in the last place of float32; by Cody and Waite's reduction and a polynomial.
static inline V exponential(V x) {
    x = vmin(vmax(x, broadcast(-87.0f)), broadcast(88.0f));
    V n = round_whole(mul(x, broadcast(1.44269504088896341f)));
    V r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    V p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(mul(p, r), r, add(r, broadcast(1.0f)));
    return scale_by_power(p, n);
}

// body(offset, n): whole vectors first, then what is left over (n < WIDTH).
template <class Whole, class Part>
static inline void over(int64_t count, const Whole& whole, const Part& part) {
    int64_t at = 0;
    for (; at + WIDTH <= count; at += WIDTH) whole(at);
    if (at < count) part(at, int(count - at));
}

}  // namespace CK_NS
