// Products of bfloat16 rows with a packed weight (see packed_product.h).
#include "packed_product.h"

namespace CK_NS {

static const int64_t MANY_ROWS = 64, ROWS_A_TASK = 512, PANELS_A_TASK = 8;

// Panels that a task takes: few enough that no thread waits long for the last one.
static int64_t panels_a_task(const Product& product) {
    int64_t threads = ck_num_threads(), panels = product.panels();
    if (threads == 1 || panels * product.blocks * product.rows < 256) return panels;
    if (product.rows >= MANY_ROWS) {
        int64_t tasks = (panels + PANELS_A_TASK - 1) / PANELS_A_TASK;
        tasks = (tasks + threads - 1) / threads * threads;
        return ((panels + tasks - 1) / tasks + 1) / 2 * 2;
    }
    int64_t share = panels / (threads * 4) / 4 * 4;
    return share < 4 ? 4 : share > 64 ? 64 : share;
}

static void multiply(const Product& product) {
    int64_t panels = product.panels(), share = panels_a_task(product), columns = (panels + share - 1) / share;
    int64_t bands = (product.rows + ROWS_A_TASK - 1) / ROWS_A_TASK;
    parallel(int(columns * bands), [&](int task) {
        int64_t row = task / columns * ROWS_A_TASK, begin = task % columns * share;
        Product part = product;
        part.rows = product.rows - row < ROWS_A_TASK ? product.rows - row : ROWS_A_TASK;
        part.input += row * product.input_stride;
        part.out += row * product.out_stride;
        range(part, begin, begin + share < panels ? begin + share : panels);
    });
}

}  // namespace CK_NS

using namespace CK_NS;

// packed, weight [O, E] (rows stride apart), O, E, stride
CK_KERNEL(pack_weight) {
    bf16* packed = pointer<bf16>(args[0]);
    const bf16* weight = pointer<bf16>(args[1]);
    int64_t outputs = args[2].i, inputs = args[3].i, stride = args[4].i;
    int64_t blocks = (inputs + BLOCK - 1) / BLOCK, panels = (outputs + PANEL - 1) / PANEL;
    parallel_ranges(panels, 4, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel)
            for (int64_t output = 0; output < PANEL; ++output) {
                int64_t row = panel * PANEL + output;
                const bf16* from = weight + row * stride;
                bf16* to = packed + panel * blocks * BLOCK_ELEMENTS + output * 2;
                for (int64_t at = 0; at < blocks * BLOCK; ++at)
                    to[at / 2 * BLOCK + at % 2] = row < outputs && at < inputs ? from[at] : 0;
            }
    });
}

// out [T, O], input [T, E], packed weight, bias [O] or null, T, E, O, input_stride, out_stride
CK_KERNEL(linear) {
    Product product;
    product.out = pointer<bf16>(args[0]);
    product.input = pointer<bf16>(args[1]);
    product.weight = pointer<bf16>(args[2]);
    product.bias = pointer<bf16>(args[3]);
    product.rows = args[4].i;
    int64_t inputs = args[5].i;
    product.outputs = args[6].i;
    product.input_stride = args[7].i;
    product.out_stride = args[8].i;
    product.blocks = (inputs + BLOCK - 1) / BLOCK;
    if (product.rows == 0 || product.outputs == 0) return;
    if (inputs % BLOCK) {  // beyond a row's end may be anything, and zero times that isn't always zero
        int64_t width = product.blocks * BLOCK;
        bf16* filled = static_cast<bf16*>(ck_scratch(product.rows * width * 2));
        for (int64_t row = 0; row < product.rows; ++row) {
            __builtin_memcpy(filled + row * width, product.input + row * product.input_stride, inputs * 2);
            __builtin_memset(filled + row * width + inputs, 0, (width - inputs) * 2);
        }
        product.input = filled;
        product.input_stride = width;
    }
    multiply(product);
}
