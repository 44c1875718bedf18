// Tile registers: how large they are, and the sums of a square, which stay in the tiles 0 to 3.
#pragma once
#include <immintrin.h>

#include "ck.h"

#if CK_LEVEL >= CK_AMX
namespace CK_NS {

struct TileShapes {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// As large as they can be: 16 rows of 64 bytes. Constant, in memory: a compiler that doesn't know what loadconfig reads
// can't move its stores.
alignas(64) static const TileShapes ALL_FULL = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

static inline void zero_square() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

template <class Sum>
static inline void store_square(Sum (*sums)[256]) {
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
}

}  // namespace CK_NS
#endif
