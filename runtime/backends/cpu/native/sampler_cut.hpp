// Where the largest values of a row end that together have a given weight.
#pragma once

#include <cstdint>

#include "sampler_passes.hpp"

namespace sscc::sampling {

// The values kept are those above `value`, and the first `ties` of those equal to it.
struct Cut {
    float value;
    std::int64_t ties;
    bool splits;  // whether more are equal to it
};

// The fewest of the largest values, of equal ones the first, that together have the weight `target` out of `total`.
// `weights` may be null (1 each); `most` is the largest value.
Cut cut(const Passes& passes, const Values& of, const float* weights, double total, double target, float most);

// The next f32 above x.
float above(float x);

}  // namespace sscc::sampling
