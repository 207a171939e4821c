#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sscc {

// An error of a kind declared in sscc.runtime.support.native_errors, with the values of the kind's fields. Python makes
// the exception and its message (python_core.cpp).
class Error : public std::exception {
  public:
    using Value = std::variant<std::int64_t, std::string>;
    using Fields = std::vector<std::pair<const char*, Value>>;

    explicit Error(const char* kind, Fields fields = {}) : kind_(kind), fields_(std::move(fields)) {}

    const char* kind() const noexcept { return kind_; }
    const Fields& fields() const noexcept { return fields_; }
    const char* what() const noexcept override { return kind_; }

  private:
    const char* kind_;
    Fields fields_;
};

// Throws an Error. Not inlined, so that callers in hot code stay small.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const char* kind, Error::Fields fields = {}) {
    throw Error(kind, std::move(fields));
}

inline std::int64_t number(std::size_t value) { return static_cast<std::int64_t>(value); }

}  // namespace sscc
