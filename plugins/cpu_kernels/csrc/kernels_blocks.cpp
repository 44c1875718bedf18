// Products of bfloat16 rows with a weight in blocks (see block_types.h).
//
// Few rows are rounded to eight bits for each 32 inputs, and codes are multiplied as whole numbers. For many rows a weight
// is widened to bfloat16, where there are tiles.
#include "block_dots.h"
#include "block_tiles.h"

namespace CK_NS {

#if CK_LEVEL >= CK_AMX
// From how many rows on widening a weight costs less than multiplying its codes row by row; measured.
static const int64_t MANY_ROWS = 12;
#else
static const int64_t MANY_ROWS = int64_t(1) << 62;
#endif

template <class T>
static void multiply(const BlockProduct& product, int64_t begin, int64_t end) {
#if CK_LEVEL >= CK_AMX
    if (product.rows >= MANY_ROWS) {
        tile_range_widened<T>(product, begin, end);
        return;
    }
#endif
    dot_range<T>(product, begin, end);
}

// Rows of a weight that have one type, and lie together.
struct Segment {
    int64_t type, outputs, start;

    int64_t panels() const { return (outputs + LANES - 1) / LANES; }
};

// Panels that a task takes: many enough for a stream, few enough that all threads are done at once.
static int64_t panels_a_task(int64_t panels, int64_t rows) {
    int64_t threads = ck_num_threads(), best = panels, least = INT64_MAX;
    if (threads == 1) return rows >= MANY_ROWS ? 8 : panels;
    for (int64_t rounds = 2; rounds <= 8; ++rounds) {
        int64_t share = (panels + threads * rounds - 1) / (threads * rounds);
        share = (share + 1) / 2 * 2;
        int64_t tasks = (panels + share - 1) / share, longest = (tasks + threads - 1) / threads * share;
        if (longest < least) {
            least = longest;
            best = share;
        }
    }
    int64_t most = rows >= MANY_ROWS ? 8 : 64;
    return best > most ? most : best;
}

// Panels from one on, counted over all segments.
static void multiply_panels(BlockProduct product, const Segment* segments, int64_t count, int64_t begin, int64_t end) {
    const uint8_t* weight = product.weight;
    for (int64_t s = 0; s < count && end > 0; ++s) {
        int64_t panels = segments[s].panels(), from = begin > 0 ? begin : 0, to = end < panels ? end : panels;
        product.outputs = segments[s].outputs;
        product.weight = weight + segments[s].start;
        if (from < to)
            with_type(segments[s].type, [&](auto type) { multiply<decltype(type)>(product, from, to); });
        begin -= panels;
        end -= panels;
        product.out += segments[s].outputs;
        if (product.bias) product.bias += segments[s].outputs;
    }
}

}  // namespace CK_NS

using namespace CK_NS;

// out [T, O], input [T, E], packed weight, bias [O] or null, segments (count × type, rows, first byte), T, E, O,
// count, input_stride, out_stride
CK_KERNEL(blocks_linear) {
    BlockProduct product = {};
    product.out = pointer<bf16>(args[0]);
    product.input = pointer<bf16>(args[1]);
    product.weight = pointer<uint8_t>(args[2]);
    product.bias = pointer<bf16>(args[3]);
    const Segment* segments = pointer<Segment>(args[4]);
    product.rows = args[5].i;
    product.inputs = args[6].i;
    product.outputs = args[7].i;
    int64_t count = args[8].i, panels = 0;
    product.input_stride = args[9].i;
    product.out_stride = args[10].i;
    if (product.rows == 0 || product.outputs == 0) return;
    if (product.rows < MANY_ROWS) round_rows(product);
    for (int64_t s = 0; s < count; ++s) panels += segments[s].panels();
    int64_t share = panels_a_task(panels, product.rows);
    parallel(int((panels + share - 1) / share), [&](int task) {
        int64_t begin = task * share, end = begin + share < panels ? begin + share : panels;
        multiply_panels(product, segments, count, begin, end);
    });
}
