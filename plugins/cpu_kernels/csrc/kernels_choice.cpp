// One token of a row of logits in bfloat16: the most likely one, or one drawn at random.
#include "draw.h"

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

// values [R], ids [R] (int64), logits [R, V] (rows stride apart), temperature [R] (float64), top_k [R] (int64), top_p [R],
// min_p [R], numbers [R] (float64), R, stride, how many ids count (at least 1)
CK_KERNEL(drawn) {
    uint16_t* values = pointer<uint16_t>(args[0]);
    int64_t* ids = pointer<int64_t>(args[1]);
    const uint16_t* logits = pointer<uint16_t>(args[2]);
    const double* temperature = pointer<double>(args[3]);
    const int64_t* top_k = pointer<int64_t>(args[4]);
    const double *top_p = pointer<double>(args[5]), *min_p = pointer<double>(args[6]);
    const double* numbers = pointer<double>(args[7]);
    int64_t stride = args[9].i, width = args[10].i;
    parallel_ranges(args[8].i, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const uint16_t* from = logits + row * stride;
            int64_t first = first_largest(from, width);
            values[row] = from[first];
            Drawing how = {temperature[row], top_k[row], top_p[row], min_p[row], numbers[row]};
            bool is_random = how.temperature > 0 && (from[first] & 0x7f80) != 0x7f80;
            ids[row] = is_random ? draw(from, width, key_of(from[first]), how) : first;
        }
    });
}
