#include "memory.hpp"

#include <cstdint>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace sscc {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMost = std::size_t{1} << 47;

}  // namespace

Block::Block(std::size_t bytes) {
    const bool large = bytes >= kHugePage;
    mapped_ = (bytes == 0 ? 1 : bytes) + (large ? 2 * kHugePage : 0);  // what aligning both ends may cost
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    data_ = static_cast<std::byte*>(mapping_);
    if (large) {
        data_ += -reinterpret_cast<std::uintptr_t>(data_) % kHugePage;
#if defined(MADV_HUGEPAGE)
        madvise(data_, (bytes + kHugePage - 1) / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: it may fail
#endif
    }
}

Block::Block(Block&& other) noexcept { *this = std::move(other); }

Block& Block::operator=(Block&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    return *this;
}

Block::~Block() {
    if (mapping_ != nullptr) {
        munmap(mapping_, mapped_);
    }
}

std::size_t Layout::place(std::size_t bytes) {
    const auto offset = bytes_;
    if (bytes > kMost || offset > kMost) {
        throw std::bad_alloc();
    }
    bytes_ = offset + (bytes + kLine - 1) / kLine * kLine;
    return offset;
}

}  // namespace sscc
