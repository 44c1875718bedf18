// From the rows of a GGUF file to panels (see block_types.h), and single rows back to numbers.
#include "block_types.h"
#include "vectors.h"

namespace CK_NS {

static inline uint32_t word(const uint8_t* at, int index) {
    uint32_t value;
    __builtin_memcpy(&value, at + 4 * index, 4);
    return value;
}

static inline void put_word(uint8_t* brick, int vector, int64_t lane, uint32_t value) {
    __builtin_memcpy(brick + vector * 64 + lane * 4, &value, 4);
}

static inline void put_half(uint8_t* record, int64_t lane, const uint8_t* value) {
    __builtin_memcpy(record + 2 * lane, value, 2);
}

// 32 nibbles out of the low or high halves of 32 bytes.
static inline void put_nibbles(uint8_t* brick, int64_t lane, const uint8_t* bytes, int shift) {
    for (int v = 0; v < 4; ++v) {
        uint32_t low = word(bytes, v) >> shift & 0x0f0f0f0fu, high = word(bytes, v + 4) >> shift & 0x0f0f0f0fu;
        put_word(brick, v, lane, low | high << 4);
    }
}

static inline void put_fifth_bits(uint8_t* brick, int64_t lane, uint32_t bits) {
    uint64_t* masks = reinterpret_cast<uint64_t*>(brick + 256);
    for (int s = 0; s < 8; ++s) masks[s] |= uint64_t(bits >> 4 * s & 15) << 4 * lane;
}

// One row's part of a brick; block is the row's block of the file that has it, brick its number among those of a block.
static void put(Q4_0, uint8_t* brick, uint8_t*, uint8_t* record, int64_t lane, const uint8_t* block, int) {
    put_half(record, lane, block);
    for (int v = 0; v < 4; ++v) put_word(brick, v, lane, word(block + 2, v));
}

static void put(Q4_1, uint8_t* brick, uint8_t*, uint8_t* record, int64_t lane, const uint8_t* block, int) {
    put_half(record, lane, block);
    put_half(record + 32, lane, block + 2);
    for (int v = 0; v < 4; ++v) put_word(brick, v, lane, word(block + 4, v));
}

static void put(Q5_0, uint8_t* brick, uint8_t*, uint8_t* record, int64_t lane, const uint8_t* block, int) {
    put_half(record, lane, block);
    put_fifth_bits(brick, lane, word(block + 2, 0));
    for (int v = 0; v < 4; ++v) put_word(brick, v, lane, word(block + 6, v));
}

static void put(Q5_1, uint8_t* brick, uint8_t*, uint8_t* record, int64_t lane, const uint8_t* block, int) {
    put_half(record, lane, block);
    put_half(record + 32, lane, block + 2);
    put_fifth_bits(brick, lane, word(block + 4, 0));
    for (int v = 0; v < 4; ++v) put_word(brick, v, lane, word(block + 8, v));
}

static void put(Q8_0, uint8_t* brick, uint8_t*, uint8_t* record, int64_t lane, const uint8_t* block, int) {
    put_half(record, lane, block);
    for (int s = 0; s < 8; ++s) put_word(brick, s, lane, word(block + 2, s) ^ 0x80808080u);
}

// Eight scales and eight least values of six bits, in twelve bytes.
static inline void k_scales(const uint8_t* packed, int number, uint8_t* scale, uint8_t* least) {
    if (number < 4) {
        *scale = packed[number] & 63;
        *least = packed[number + 4] & 63;
    } else {
        *scale = uint8_t((packed[number + 4] & 15) | packed[number - 4] >> 6 << 4);
        *least = uint8_t(packed[number + 4] >> 4 | packed[number] >> 6 << 4);
    }
}

static void put_k(uint8_t* super, uint8_t* record, int64_t lane, const uint8_t* block, int number) {
    if (number == 0) {
        put_half(super, lane, block);
        put_half(super + 32, lane, block + 2);
    }
    k_scales(block + 4, number, record + lane, record + 16 + lane);
}

static void put(Q4_K, uint8_t* brick, uint8_t* super, uint8_t* record, int64_t lane, const uint8_t* block, int number) {
    put_k(super, record, lane, block, number);
    put_nibbles(brick, lane, block + 16 + number / 2 * 32, number % 2 * 4);
}

static void put(Q5_K, uint8_t* brick, uint8_t* super, uint8_t* record, int64_t lane, const uint8_t* block, int number) {
    put_k(super, record, lane, block, number);
    put_nibbles(brick, lane, block + 48 + number / 2 * 32, number % 2 * 4);
    uint32_t bits = 0;
    for (int e = 0; e < 32; ++e) bits |= uint32_t(block[16 + e] >> number & 1) << e;
    put_fifth_bits(brick, lane, bits);
}

static void put(Q6_K, uint8_t* brick, uint8_t* super, uint8_t* record, int64_t lane, const uint8_t* block, int number) {
    int half = number / 4, part = number % 4;
    if (number == 0) put_half(super, lane, block + 208);
    record[lane] = block[192 + 2 * number];
    record[16 + lane] = block[193 + 2 * number];
    put_nibbles(brick, lane, block + half * 64 + part % 2 * 32, part / 2 * 4);
    for (int v = 0; v < 2; ++v) {
        uint32_t bits = 0;
        for (int s = 0; s < 4; ++s) bits |= (word(block + 128 + half * 32, 4 * v + s) >> 2 * part & 0x03030303u) << 2 * s;
        put_word(brick + 256, v, lane, bits);
    }
}

template <class T>
static void pack_panel(uint8_t* panel, const uint8_t* rows, int64_t count, int64_t row_bytes, int64_t bricks) {
    int64_t size = T::panel_bytes(bricks), block_bytes = row_bytes / (T::is_k ? bricks / SUPER : bricks);
    __builtin_memset(panel, 0, size);
    uint8_t* scales = panel + bricks * T::brick_bytes;
    for (int64_t brick = 0; brick < bricks; ++brick) {
        uint8_t* to = panel + brick * T::brick_bytes;
        uint8_t* super = const_cast<uint8_t*>(T::super(scales, brick));
        uint8_t* record = const_cast<uint8_t*>(T::record(scales, brick));
        for (int64_t lane = 0; lane < count; ++lane) {
            const uint8_t* row = rows + lane * row_bytes;
            if (T::is_k) put(T(), to, super, record, lane, row + brick / SUPER * block_bytes, int(brick % SUPER));
            else put(T(), to, super, record, lane, row + brick * block_bytes, 0);
        }
    }
}

// The code of an input of a lane.
template <class T>
static inline int code_of(const uint8_t* brick, int64_t lane, int input) {
    int step = input / 4, byte = input % 4;
    if (T::BITS == 8) return brick[step * 64 + lane * 4 + byte];
    int low = brick[step % 4 * 64 + lane * 4 + byte] >> (step / 4 * 4) & 15;
    if (T::BITS == 5) return low | (brick[256 + step * 8 + (lane * 4 + byte) / 8] >> ((lane * 4 + byte) % 8) & 1) << 4;
    if (T::BITS == 6) return low | (brick[256 + step / 4 * 64 + lane * 4 + byte] >> 2 * (step % 4) & 3) << 4;
    return low;
}

template <class T>
static void decode_row(bf16* out, const uint8_t* panel, int64_t lane, int64_t bricks) {
    const uint8_t* scales = T::scales(panel, bricks);
    for (int64_t brick = 0; brick < bricks; ++brick) {
        const uint8_t *super = T::super(scales, brick), *record = T::record(scales, brick);
        float scale[2], least = 0;
        if (T::SCALING == SCALE || T::SCALING == SCALE_MIN) scale[0] = scale[1] = half_to_float(record + 2 * lane);
        if (T::SCALING == SCALE_MIN) least = half_to_float(record + 32 + 2 * lane);
        if (T::SCALING == K_MIN) {
            scale[0] = scale[1] = half_to_float(super + 2 * lane) * float(record[lane]);
            least = -half_to_float(super + 32 + 2 * lane) * float(record[16 + lane]);
        }
        if (T::SCALING == K_HALVES) {
            scale[0] = half_to_float(super + 2 * lane) * float(int8_t(record[lane]));
            scale[1] = half_to_float(super + 2 * lane) * float(int8_t(record[16 + lane]));
        }
        const uint8_t* codes = panel + brick * T::brick_bytes;
        for (int input = 0; input < BRICK; ++input) {
            float value = float(code_of<T>(codes, lane, input) - T::OFFSET) * scale[input / 16];
            out[brick * BRICK + input] = narrow(T::has_min ? value + least : value);
        }
    }
}

}  // namespace CK_NS

using namespace CK_NS;

// packed, rows (bytes), O, E, row_bytes, type: rows of one block type to panels
CK_KERNEL(pack_blocks) {
    uint8_t* packed = pointer<uint8_t>(args[0]);
    const uint8_t* rows = pointer<uint8_t>(args[1]);
    int64_t outputs = args[2].i, bricks = args[3].i / BRICK, row_bytes = args[4].i;
    with_type(args[5].i, [&](auto type) {
        typedef decltype(type) T;
        int64_t size = T::panel_bytes(bricks);
        parallel_ranges((outputs + LANES - 1) / LANES, 1, [&](int64_t begin, int64_t end) {
            for (int64_t panel = begin; panel < end; ++panel) {
                int64_t first = panel * LANES, count = outputs - first < LANES ? outputs - first : LANES;
                pack_panel<T>(packed + panel * size, rows + first * row_bytes, count, row_bytes, bricks);
            }
        });
    });
}

// out [T, E], ids [T], packed, T, E, V, type: rows by id; zeros for an id that isn't there
CK_KERNEL(blocks_embedding) {
    bf16* out = pointer<bf16>(args[0]);
    const int64_t* ids = pointer<int64_t>(args[1]);
    const uint8_t* packed = pointer<uint8_t>(args[2]);
    int64_t rows = args[3].i, width = args[4].i, count = args[5].i;
    with_type(args[6].i, [&](auto type) {
        typedef decltype(type) T;
        int64_t bricks = width / BRICK, size = T::panel_bytes(bricks);
        parallel_ranges(rows, 8, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                int64_t id = ids[row];
                if (id < 0 || id >= count) __builtin_memset(out + row * width, 0, width * 2);
                else decode_row<T>(out + row * width, packed + id / LANES * size, id % LANES, bricks);
            }
        });
    });
}

// sizes [1], E, type: bytes of a panel
CK_KERNEL(panel_bytes) {
    with_type(args[2].i, [&](auto type) { *pointer<int64_t>(args[0]) = decltype(type)::panel_bytes(args[1].i / BRICK); });
}
