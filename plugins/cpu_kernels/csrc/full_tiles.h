// All tile registers as large as they can be: 16 rows of 64 bytes.
#pragma once
#include "ck.h"

#if CK_LEVEL >= CK_AMX
namespace CK_NS {

struct TileShapes {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Constant, in memory: a compiler that doesn't know what loadconfig reads can't move its stores.
alignas(64) static const TileShapes ALL_FULL = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

}  // namespace CK_NS
#endif
