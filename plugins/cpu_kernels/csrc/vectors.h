// Vectors in the level's width. V has WIDTH floats, I as many words of 32 bits.
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
typedef __m512i I;
#define CK_MM(operation) _mm512_##operation
#else
static const int WIDTH = 8;
typedef __m256 V;
typedef __m256i I;
#define CK_MM(operation) _mm256_##operation
#endif

static inline V zero() { return CK_MM(setzero_ps)(); }
static inline V broadcast(float value) { return CK_MM(set1_ps)(value); }
static inline V add(V a, V b) { return CK_MM(add_ps)(a, b); }
static inline V sub(V a, V b) { return CK_MM(sub_ps)(a, b); }
static inline V mul(V a, V b) { return CK_MM(mul_ps)(a, b); }
static inline V div(V a, V b) { return CK_MM(div_ps)(a, b); }
static inline V fma(V a, V b, V c) { return CK_MM(fmadd_ps)(a, b, c); }
static inline V vmax(V a, V b) { return CK_MM(max_ps)(a, b); }
static inline V vmin(V a, V b) { return CK_MM(min_ps)(a, b); }
static inline V load(const float* p) { return CK_MM(loadu_ps)(p); }
static inline void store(float* p, V v) { CK_MM(storeu_ps)(p, v); }
static inline V magnitude(V v) { return CK_MM(andnot_ps)(broadcast(-0.0f), v); }

static inline I all_words(int32_t value) { return CK_MM(set1_epi32)(value); }
static inline I all_bytes(int value) { return CK_MM(set1_epi8)(char(value)); }
static inline I add(I a, I b) { return CK_MM(add_epi32)(a, b); }
template <int N> static inline I right(I a) { return CK_MM(srli_epi32)(a, N); }
template <int N> static inline I left(I a) { return CK_MM(slli_epi32)(a, N); }
static inline V to_floats(I a) { return CK_MM(cvtepi32_ps)(a); }
static inline I to_words(V v) { return CK_MM(cvtps_epi32)(v); }  // to nearest

// Of pairs of bfloat16 in 32 bits: the first ones, the second ones.
static inline V low_of_pairs(V v) { return (V)left<16>((I)v); }
static inline V high_of_pairs(V v) { return (V)((I)v & all_words(int(0xffff0000))); }

#if CK_LEVEL >= CK_AVX512
static inline I load_bytes(const void* p) { return _mm512_loadu_si512(p); }
static inline V load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p); }
static inline void store_part(float* p, V v, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), v); }
static inline float sum(V v) { return _mm512_reduce_add_ps(v); }
static inline float largest(V v) { return _mm512_reduce_max_ps(v); }

static inline V load_halves(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline V load(const uint8_t* p) { return to_floats(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))); }
static inline V load(const int8_t* p) { return to_floats(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
static inline void store_bytes(int8_t* p, I words) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(words)); }

static inline V widen16(__m256i raw) { return (V)left<16>(_mm512_cvtepu16_epi32(raw)); }
static inline __m256i narrow16(V v) {
#if CK_LEVEL >= CK_AVX512_VNNI_BF16
    return (__m256i)_mm512_cvtneps_pbh(v);
#else
    I bits = (I)v, odd = right<16>(bits) & all_words(1);
    I rounded = right<16>(add(add(bits, odd), all_words(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, right<16>(bits), all_words(0x40));
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
// 2^n · v for whole n.
static inline V scale_by_power(V v, V n) { return _mm512_scalef_ps(v, n); }
static inline V round_whole(V v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#else
static inline I load_bytes(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline V load_part(const float* p, int n) {
    alignas(32) float part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
}
static inline void store_part(float* p, V v, int n) {
    alignas(32) float part[8];
    store(part, v);
    for (int i = 0; i < n; ++i) p[i] = part[i];
}
static inline float sum(V v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
static inline float largest(V v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

static inline V load_halves(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline V load(const uint8_t* p) { return to_floats(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
static inline V load(const int8_t* p) { return to_floats(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
static inline void store_bytes(int8_t* p, I words) {
    __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(shorts, shorts));
}

static inline V widen8(__m128i raw) { return (V)left<16>(_mm256_cvtepu16_epi32(raw)); }
static inline __m128i narrow8(V v) {
    I bits = (I)v, odd = right<16>(bits) & all_words(1);
    I rounded = right<16>(add(add(bits, odd), all_words(0x7fff)));
    I nan = (I)_mm256_cmp_ps(v, v, _CMP_UNORD_Q), quiet = right<16>(bits) | all_words(0x40);
    rounded = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
static inline V load(const bf16* p) { return widen8(_mm_loadu_si128((const __m128i*)p)); }
static inline void store(bf16* p, V v) { _mm_storeu_si128((__m128i*)p, narrow8(v)); }
static inline V load_part(const bf16* p, int n) {
    alignas(16) bf16 part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
}
static inline void store_part(bf16* p, V v, int n) {
    alignas(16) bf16 part[8];
    store(part, v);
    for (int i = 0; i < n; ++i) p[i] = part[i];
}
static inline V scale_by_power(V v, V n) {
    return mul(v, (V)left<23>(add(to_words(n), all_words(127))));
}
static inline V round_whole(V v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#endif

static inline void store_rounded(int8_t* p, V v) { store_bytes(p, to_words(v)); }

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
