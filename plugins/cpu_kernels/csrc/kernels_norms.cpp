// Root-mean-square norms of rows of bfloat16; statistics and products in float32, rounded once.
#include "vectors.h"

namespace CK_NS {

// Elements that a thread takes at least: below, waking the others costs more than it saves.
static const int64_t LEAST_ELEMENTS = 16384;

static float scale_of(const bf16* row, int64_t width, float eps) {
    V first = zero(), second = zero();
    int64_t at = 0;
    for (; at + 2 * WIDTH <= width; at += 2 * WIDTH) {
        V a = load(row + at), b = load(row + at + WIDTH);
        first = fma(a, a, first);
        second = fma(b, b, second);
    }
    first = add(first, second);
    over(
        width - at, [&](int64_t i) { V a = load(row + at + i); first = fma(a, a, first); },
        [&](int64_t i, int n) { V a = load_part(row + at + i, n); first = fma(a, a, first); });
    return 1.0f / __builtin_sqrtf(sum(first) / float(width) + eps);
}

static void norm_row(bf16* out, const bf16* row, const bf16* weight, int64_t width, float eps, float plus) {
    V scale = broadcast(scale_of(row, width, eps)), offset = broadcast(plus);
    over(
        width, [&](int64_t i) { store(out + i, mul(mul(load(row + i), scale), add(load(weight + i), offset))); },
        [&](int64_t i, int n) {
            store_part(out + i, mul(mul(load_part(row + i, n), scale), add(load_part(weight + i, n), offset)), n);
        });
}

static void add_row(bf16* total, const bf16* left, const bf16* right, int64_t width) {
    over(
        width, [&](int64_t i) { store(total + i, add(load(left + i), load(right + i))); },
        [&](int64_t i, int n) { store_part(total + i, add(load_part(left + i, n), load_part(right + i, n)), n); });
}

static int64_t least_rows(int64_t width) { return LEAST_ELEMENTS / (width + 1) + 1; }

}  // namespace CK_NS

using namespace CK_NS;

// out [T, E], input [T, E] (rows input_stride apart), weight [E], T, E, input_stride, eps, plus: input / rms · (weight + plus)
CK_KERNEL(rms_norm) {
    bf16* out = pointer<bf16>(args[0]);
    const bf16 *input = pointer<bf16>(args[1]), *weight = pointer<bf16>(args[2]);
    int64_t rows = args[3].i, width = args[4].i, stride = args[5].i;
    float eps = float(args[6].f), plus = float(args[7].f);
    parallel_ranges(rows, least_rows(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            norm_row(out + row * width, input + row * stride, weight, width, eps, plus);
    });
}

// out, total [T, E], input, residual (rows apart by their strides), weight, T, E, input_stride, residual_stride, eps, plus
CK_KERNEL(add_rms_norm) {
    bf16 *out = pointer<bf16>(args[0]), *total = pointer<bf16>(args[1]);
    const bf16 *input = pointer<bf16>(args[2]), *residual = pointer<bf16>(args[3]), *weight = pointer<bf16>(args[4]);
    int64_t rows = args[5].i, width = args[6].i, input_stride = args[7].i, residual_stride = args[8].i;
    float eps = float(args[9].f), plus = float(args[10].f);
    parallel_ranges(rows, least_rows(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            add_row(total + row * width, input + row * input_stride, residual + row * residual_stride, width);
            norm_row(out + row * width, total + row * width, weight, width, eps, plus);
        }
    });
}
