// Gated activations, soft cap: elements of bfloat16 on their own, in float32, rounded once.
#include "vectors.h"

namespace CK_NS {

// Elements that a thread takes at least: below, waking the others costs more than it saves.
static const int64_t LEAST_ACTIVATIONS = 8192;

#if CK_LEVEL >= CK_AVX512
// value / (1 + e^-argument) to 20 bits, of which bfloat16 keeps 8: without division, and with a shorter series.
static inline V sigmoid_product(V value, V argument) {
    V x = vmin(mul(argument, broadcast(-1.44269504088896341f)), broadcast(126.0f));
    V part = _mm512_reduce_ps(x, 0x9);  // x minus the whole number below it, by which the series is scaled
    V p = fma(broadcast(1.353416797e-02f), part, broadcast(5.201146230e-02f));
    p = fma(p, part, broadcast(2.414427544e-01f));
    p = fma(p, part, broadcast(6.930038354e-01f));
    p = fma(p, part, broadcast(1.000002593e+00f));
    V below = add(broadcast(1.0f), _mm512_scalef_ps(p, x));
    V inverse = _mm512_rcp14_ps(below);
    inverse = mul(inverse, _mm512_fnmadd_ps(below, inverse, broadcast(2.0f)));
    return mul(value, inverse);
}
#else
static inline V sigmoid_product(V value, V argument) {
    return div(value, add(broadcast(1.0f), exponential(sub(zero(), argument))));
}
#endif

struct Silu {
    static inline V of(V gate) { return sigmoid_product(gate, gate); }
};

// By tanh; (1 + tanh(x)) / 2 is the sigmoid of 2x.
struct Gelu {
    static inline V of(V gate) {
        V cubed = mul(mul(gate, gate), gate);
        V inner = mul(fma(cubed, broadcast(0.044715f), gate), broadcast(2.0f * 0.7978845608028654f));
        return sigmoid_product(gate, inner);
    }
};

template <class Activation>
static void gated(const ck_arg* args) {
    bf16* out = pointer<bf16>(args[0]);
    const bf16* input = pointer<bf16>(args[1]);
    int64_t rows = args[2].i, width = args[3].i, stride = args[4].i;
    parallel_ranges(rows, LEAST_ACTIVATIONS / (width + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const bf16 *gate = input + row * stride, *up = gate + width;
            bf16* to = out + row * width;
            over(
                width, [&](int64_t i) { store(to + i, mul(Activation::of(load(gate + i)), load(up + i))); },
                [&](int64_t i, int n) {
                    store_part(to + i, mul(Activation::of(load_part(gate + i, n)), load_part(up + i, n)), n);
                });
        }
    });
}

// cap · tanh(v / cap)
static inline V capped(V v, V cap) {
    V power = exponential(div(add(v, v), cap));
    return mul(cap, sub(broadcast(1.0f), div(broadcast(2.0f), add(power, broadcast(1.0f)))));
}

}  // namespace CK_NS

using namespace CK_NS;

// out [T, I], input [T, 2I] (rows stride apart), T, I, stride: silu of the first half by the second
CK_KERNEL(silu_and_mul) { gated<Silu>(args); }

// The same with gelu.
CK_KERNEL(gelu_tanh_and_mul) { gated<Gelu>(args); }

// out, input, number of elements, cap
CK_KERNEL(soft_cap) {
    bf16* out = pointer<bf16>(args[0]);
    const bf16* input = pointer<bf16>(args[1]);
    V cap = broadcast(float(args[3].f));
    parallel_ranges(args[2].i, LEAST_ACTIVATIONS, [&](int64_t begin, int64_t end) {
        over(
            end - begin, [&](int64_t i) { store(out + begin + i, capped(load(input + begin + i), cap)); },
            [&](int64_t i, int n) {
                store_part(out + begin + i, capped(load_part(input + begin + i, n), cap), n);
            });
    });
}
