// A list of calls in one.
#include "ck.h"

CK_EXPORT void ck_replay(const ck_call* calls, int64_t num_calls) {
    for (int64_t i = 0; i < num_calls; ++i) calls[i].function(calls[i].args);
}
