// Weights in blocks, laid out in lanes: as they are in the file, bit for bit, but in an order that vectors can read.
//
// Sixteen rows make a panel. A panel has a brick for each 32 inputs, all of them one after the other, then a record of
// scales for each. In a brick each row has one of 16 lanes of four bytes:
//   four bits: four vectors; byte i of a lane of vector v is input 4v + i below and input 16 + 4v + i above
//   a fifth bit: eight masks; mask s has a bit for each of the bytes of step s (inputs 4s to 4s + 3)
//   two further bits: two vectors; bits 2(s mod 4) of byte i of vector s / 4 belong to input 4s + i
//   eight bits: eight vectors; byte i of a lane of vector s is input 4s + i, plus 128
// Codes are unsigned; OFFSET is what has to come off them.
#pragma once
#include <immintrin.h>

#include "ck.h"

namespace CK_NS {

static const int64_t LANES = 16, BRICK = 32, SUPER = 8;  // bricks that share a scale of scales

enum Scaling {
    SCALE,      // a float16 for each brick
    SCALE_MIN,  // and the least value
    K_MIN,      // a float16 for eight bricks times a byte for each; the least value alike, to be taken off
    K_HALVES,   // a float16 for eight bricks times a signed byte for each half of a brick
};

template <int CODE, int BITS_, Scaling SCALING_, int OFFSET_>
struct BlockType {
    static const int code = CODE, BITS = BITS_, OFFSET = OFFSET_;
    static const Scaling SCALING = SCALING_;
    static const int64_t brick_bytes = BITS == 4 ? 256 : BITS == 5 ? 320 : BITS == 6 ? 384 : 512;
    static const bool is_k = SCALING == K_MIN || SCALING == K_HALVES;
    static const bool has_min = SCALING == SCALE_MIN || SCALING == K_MIN;
    // Before the eight records of bricks that share them.
    static const int64_t super_bytes = SCALING == K_MIN ? 64 : SCALING == K_HALVES ? 32 : 0;
    static const int64_t record_bytes = SCALING == SCALE_MIN ? 64 : 32;

    static int64_t panel_bytes(int64_t bricks) {
        int64_t scales = bricks * record_bytes + (is_k ? bricks / SUPER * super_bytes : 0);
        return (bricks * brick_bytes + scales + 63) / 64 * 64;
    }
    static const uint8_t* scales(const uint8_t* panel, int64_t bricks) { return panel + bricks * brick_bytes; }
    static const uint8_t* super(const uint8_t* scales, int64_t brick) {
        return scales + brick / SUPER * (super_bytes + SUPER * record_bytes);
    }
    static const uint8_t* record(const uint8_t* scales, int64_t brick) {
        return is_k ? super(scales, brick) + super_bytes + brick % SUPER * record_bytes : scales + brick * record_bytes;
    }
};

// By their numbers in GGUF files.
typedef BlockType<2, 4, SCALE, 8> Q4_0;
typedef BlockType<3, 4, SCALE_MIN, 0> Q4_1;
typedef BlockType<6, 5, SCALE, 16> Q5_0;
typedef BlockType<7, 5, SCALE_MIN, 0> Q5_1;
typedef BlockType<8, 8, SCALE, 128> Q8_0;
typedef BlockType<12, 4, K_MIN, 0> Q4_K;
typedef BlockType<13, 5, K_MIN, 0> Q5_K;
typedef BlockType<14, 6, K_HALVES, 32> Q6_K;

// visit(type) with an object of the type of that number.
template <class Visit>
static inline void with_type(int64_t code, const Visit& visit) {
    switch (code) {
        case Q4_0::code: visit(Q4_0()); break;
        case Q4_1::code: visit(Q4_1()); break;
        case Q5_0::code: visit(Q5_0()); break;
        case Q5_1::code: visit(Q5_1()); break;
        case Q8_0::code: visit(Q8_0()); break;
        case Q4_K::code: visit(Q4_K()); break;
        case Q5_K::code: visit(Q5_K()); break;
        case Q6_K::code: visit(Q6_K()); break;
    }
}

static inline float half_to_float(const uint8_t* at) {
    uint16_t bits;
    __builtin_memcpy(&bits, at, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

}  // namespace CK_NS
