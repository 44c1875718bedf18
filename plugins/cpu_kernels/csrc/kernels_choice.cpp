// The most likely token of a row of logits in bfloat16.
#include "ck.h"

namespace CK_NS {

static const int64_t LANES = CK_LEVEL >= CK_AVX512 ? 32 : 16;
// So many steps of all lanes can be counted in 16 bits.
static const int64_t MOST_STEPS = 1 << 14;

typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));

struct Largest {
    int16_t key;
    int64_t id;

    // Ids come in rising order, so of equal ones the first stays.
    inline void meet(int16_t other, int64_t other_id) {
        if (other > key || (other == key && other_id < id)) {
            key = other;
            id = other_id;
        }
    }
};

// Integers that sort as the numbers do; zeros are equal, and what is no number is the largest.
static inline Shorts keys(const uint16_t* from) {
    Shorts bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    Shorts order = bits ^ ((bits >> 15) & 0x7fff);
    order -= order == -1;
    return (bits & 0x7fff) > 0x7f80 ? (bits | 0x7fff) & 0x7fff : order;
}

static inline void meet_lanes(Largest& largest, const uint16_t* row, int64_t begin, int64_t steps) {
    Shorts best = keys(row + begin), where = best - best;
    for (int64_t step = 1; step < steps; ++step) {
        Shorts here = keys(row + begin + step * LANES), at = best - best + int16_t(step);
        where = here > best ? at : where;
        best = here > best ? here : best;
    }
    for (int64_t lane = 0; lane < LANES; ++lane) largest.meet(best[lane], begin + where[lane] * LANES + lane);
}

static inline int64_t first_largest(const uint16_t* row, int64_t width) {
    Largest largest = {-0x8000, 0};
    int64_t at = 0;
    for (int64_t steps; (steps = (width - at) / LANES) > 0; at += steps * LANES) {
        if (steps > MOST_STEPS) steps = MOST_STEPS;
        meet_lanes(largest, row, at, steps);
    }
    if (at < width) {  // the last ones, behind them what is less than everything
        uint16_t rest[LANES];
        for (int64_t lane = 0; lane < LANES; ++lane) rest[lane] = at + lane < width ? row[at + lane] : 0xff80;
        Shorts best = keys(rest);
        for (int64_t lane = 0; at + lane < width; ++lane) largest.meet(best[lane], at + lane);
    }
    return largest.id;
}

}  // namespace CK_NS

using namespace CK_NS;

// values [R], ids [R] (int64), logits [R, V] (rows stride apart), R, stride, how many ids count (at least 1)
CK_KERNEL(most_likely) {
    uint16_t* values = pointer<uint16_t>(args[0]);
    int64_t* ids = pointer<int64_t>(args[1]);
    const uint16_t* logits = pointer<uint16_t>(args[2]);
    int64_t stride = args[4].i, width = args[5].i;
    parallel_ranges(args[3].i, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const uint16_t* from = logits + row * stride;
            ids[row] = first_largest(from, width);
            values[row] = from[ids[row]];
        }
    });
}
