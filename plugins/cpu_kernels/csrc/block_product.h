// A product of bfloat16 rows with a weight in blocks, and its rows rounded to eight bits for each 32 inputs.
#pragma once
#include "block_types.h"
#include "scratch.h"
#include "vectors.h"

namespace CK_NS {

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
};

// Below it a quotient could be beyond all numbers; what is that small is nothing.
static const float LEAST_ROUNDED = 1e-30f;

static void round_row(const bf16* row, int64_t bricks, int8_t* values, Rounded* rounded) {
    V nothing = zero();
    for (int64_t brick = 0; brick < bricks; ++brick, row += BRICK, values += BRICK) {
        V wide[BRICK / WIDTH], high = zero();
        for (int i = 0; i < BRICK / WIDTH; ++i) {
            wide[i] = load(row + i * WIDTH);
            high = vmax(high, magnitude(wide[i]));
            nothing = fma(wide[i], zero(), nothing);
        }
        float most = largest(high), inverse = most > LEAST_ROUNDED ? 127.0f / most : 0.0f, scale = most / 127.0f;
        float sums[2] = {0, 0};
        for (int i = 0; i < BRICK / WIDTH; ++i) {
            I codes = to_words(mul(wide[i], broadcast(inverse)));
            store_bytes(values + i * WIDTH, codes);
            sums[i * WIDTH / 16] += sum(to_floats(codes));
        }
        rounded[brick] = {scale, scale * (sums[0] + sums[1]), int32_t(sums[0]), int32_t(sums[1])};
    }
    // No number among the inputs makes no number of the results.
    float strange = sum(nothing);
    if (strange != strange) rounded[0] = {strange, strange, 0, 0};
}

static void round_rows(BlockProduct& product) {
    int64_t bricks = product.bricks(), size = (product.rows * product.inputs + 63) / 64 * 64;
    uint8_t* memory = static_cast<uint8_t*>(ck_scratch(size + product.rows * bricks * int64_t(sizeof(Rounded))));
    int8_t* values = reinterpret_cast<int8_t*>(memory);
    Rounded* rounded = reinterpret_cast<Rounded*>(memory + size);
    parallel_ranges(product.rows, 2048 / product.inputs + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            round_row(product.input + row * product.input_stride, bricks, values + row * product.inputs,
                      rounded + row * bricks);
    });
    product.values = values;
    product.rounded = rounded;
}

}  // namespace CK_NS
