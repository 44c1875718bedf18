// What attention needs of vectors beyond arithmetic: powers of two, sums across lanes.
#pragma once
#include "vectors.h"

namespace CK_NS {

// Stands for "no score yet": smaller than all, and yet its difference to itself is a number.
static const float LOWEST = -1e38f;
static const float LOG2_E = 1.44269504088896341f;

template <int DEGREE>
static inline V power_series(V x) {
    V p = DEGREE >= 6 ? fma(broadcast(1.5403530394e-4f), x, broadcast(1.3333558146e-3f)) : broadcast(1.3333558146e-3f);
    if (DEGREE >= 5) p = fma(p, x, broadcast(9.6181291076e-3f));
    if (DEGREE < 5) p = broadcast(9.6181291076e-3f);
    p = fma(p, x, broadcast(5.5504108665e-2f));
    p = fma(p, x, broadcast(2.4022650696e-1f));
    p = fma(p, x, broadcast(6.9314718056e-1f));
    return fma(p, x, broadcast(1.0f));
}

#if CK_LEVEL >= CK_AVX512
// 2^x for x up to 127; exactly 0 far below, minus infinity included.
template <int DEGREE>
static inline V power_of_two(V x) {
    x = vmax(broadcast(-250.0f), x);  // in this order a NaN stays one
    V n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(power_series<DEGREE>(sub(x, n)), n);
}

// Lanes from ``begin`` on and before ``end`` stay, the others become minus infinity.
static inline V only_between(V v, int64_t begin, int64_t end) {
    uint32_t upto = end >= 16 ? 0xffffu : end <= 0 ? 0u : (1u << end) - 1;
    uint32_t before = begin >= 16 ? 0xffffu : begin <= 0 ? 0u : (1u << begin) - 1;
    return _mm512_mask_blend_ps(__mmask16(upto & ~before), broadcast(-__builtin_inff()), v);
}

// Lane i of the result: the sum of all lanes of v[i].
static inline V sums(V* v) {
    for (int i = 0; i < 8; ++i)
        v[i] = add(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; ++i) {
        __m512d a = _mm512_castps_pd(v[2 * i]), b = _mm512_castps_pd(v[2 * i + 1]);
        v[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int half = 2; half >= 1; half /= 2)
        for (int i = 0; i < half; ++i)
            v[i] = add(
                _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88), _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
    return v[0];
}
#else
template <int DEGREE>
static inline V power_of_two(V x) {
    V vanishes = _mm256_cmp_ps(x, broadcast(-126.0f), _CMP_LT_OQ);
    x = vmax(broadcast(-126.0f), x);  // in this order a NaN stays one
    V n = round_whole(x);
    return _mm256_andnot_ps(vanishes, scale_by_power(power_series<DEGREE>(sub(x, n)), n));
}

static inline V only_between(V v, int64_t begin, int64_t end) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int first = begin < -1 ? -1 : begin > 8 ? 8 : int(begin), last = end < 0 ? 0 : end > 8 ? 8 : int(end);
    __m256i inside = _mm256_and_si256(
        _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(first - 1)), _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane));
    return _mm256_blendv_ps(broadcast(-__builtin_inff()), v, _mm256_castsi256_ps(inside));
}

static inline V sums(V* v) {
    for (int i = 0; i < 4; ++i)
        v[i] = add(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; ++i) {
        __m256d a = _mm256_castps_pd(v[2 * i]), b = _mm256_castps_pd(v[2 * i + 1]);
        v[i] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return add(_mm256_permute2f128_ps(v[0], v[1], 0x20), _mm256_permute2f128_ps(v[0], v[1], 0x31));
}
#endif

static inline float power_of_two(float x) {
    alignas(64) float lanes[WIDTH];
    store(lanes, power_of_two<6>(broadcast(x)));
    return lanes[0];
}

}  // namespace CK_NS
