// The floating-point environment of all computations.
#pragma once

#include <cfenv>

namespace sscc {

// Sets the default environment for a scope: results must not depend on modes of the calling thread, such as flushing
// denormals to zero.
class DefaultFloatingPoint {
  public:
    DefaultFloatingPoint() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
    DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
    DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

  private:
    std::fenv_t saved_;
};

}  // namespace sscc
