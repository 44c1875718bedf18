// The few torch ops that models have between kernels, for steps that are recorded: copies, products with a number.
#include "vectors.h"

namespace CK_NS {

static const int64_t LEAST_COPIED = 16384;  // bytes that a thread takes at least

template <class Element>
static void gather_row(char* out, const char* input, int64_t count, int64_t stride) {
    Element* to = reinterpret_cast<Element*>(out);
    const Element* from = reinterpret_cast<const Element*>(input);
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
}

static inline void copy_row(char* out, const char* input, int64_t count, int64_t stride, int64_t bytes) {
    if (stride == 1) __builtin_memcpy(out, input, size_t(count * bytes));
    else if (bytes == 1) gather_row<uint8_t>(out, input, count, stride);
    else if (bytes == 2) gather_row<uint16_t>(out, input, count, stride);
    else if (bytes == 4) gather_row<uint32_t>(out, input, count, stride);
    else gather_row<uint64_t>(out, input, count, stride);
}

}  // namespace CK_NS

using namespace CK_NS;

// out (contiguous), input, bytes an element (1, 2, 4, 8), four sizes, four strides in elements
CK_KERNEL(copy_strided) {
    char* out = pointer<char>(args[0]);
    const char* input = pointer<const char>(args[1]);
    const int64_t bytes = args[2].i;
    const int64_t sizes[4] = {args[3].i, args[4].i, args[5].i, args[6].i};
    const int64_t strides[4] = {args[7].i, args[8].i, args[9].i, args[10].i};
    const int64_t row_bytes = sizes[3] * bytes;
    parallel_ranges(sizes[0] * sizes[1] * sizes[2], LEAST_COPIED / (row_bytes + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const int64_t third = row % sizes[2], second = row / sizes[2] % sizes[1], first = row / (sizes[1] * sizes[2]);
            const int64_t at = first * strides[0] + second * strides[1] + third * strides[2];
            copy_row(out + row * row_bytes, input + at * bytes, sizes[3], strides[3], bytes);
        }
    });
}

// out, input (both contiguous bfloat16), number of elements, factor: in float32, rounded once
CK_KERNEL(scale) {
    bf16* out = pointer<bf16>(args[0]);
    const bf16* input = pointer<const bf16>(args[1]);
    const int64_t count = args[2].i;
    const float factor = float(args[3].f);
    for (int64_t i = 0; i < count; ++i) out[i] = narrow(widen(input[i]) * factor);
}
