#include "memory.hpp"

#include <cstdint>
#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace sscc {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMost = std::size_t{1} << 47;

}  // namespace

Block::Block(std::size_t bytes, bool guarded) {
    if (guarded) {
        guard(bytes);
        return;
    }
    const bool large = bytes >= kHugePage;
    mapped_ = (bytes == 0 ? 1 : bytes) + (large ? 2 * kHugePage : 0);  // room to align both ends
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    data_ = static_cast<std::byte*>(mapping_);
    if (large) {
        data_ += -reinterpret_cast<std::uintptr_t>(data_) % kHugePage;
#if defined(MADV_HUGEPAGE)
        madvise(data_, (bytes + kHugePage - 1) / kHugePage * kHugePage, MADV_HUGEPAGE);  // a failure does no harm
#endif
    }
}

// Guarded memory is for tests, so it has no huge pages. It begins at a multiple of a cache line, so up to a line may be
// left between its end and the guard page.
void Block::guard(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > kMost) {
        throw std::bad_alloc();
    }
    const auto inner = (bytes + page) / page * page;
    mapped_ = inner + 2 * page;
    mapping_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    const auto start = static_cast<std::byte*>(mapping_) + page;
    if (mprotect(start, inner, PROT_READ | PROT_WRITE) != 0) {
        throw std::bad_alloc();
    }
    data_ = start + (inner - bytes) / kLine * kLine;
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

std::size_t Pieces::place(std::size_t bytes) {
    offsets_.push_back(layout_.place(bytes));
    sizes_.push_back(bytes);
    return offsets_.size() - 1;
}

void Pieces::allocate() {
    if (!guarded_) {
        blocks_.emplace_back(layout_.bytes());
        return;
    }
    for (const auto size : sizes_) {
        blocks_.emplace_back(size, true);
    }
}

std::byte* Pieces::at(std::size_t piece) const {
    return guarded_ ? blocks_[piece].data() : blocks_[0].data() + offsets_[piece];
}

std::size_t Pieces::mapped() const {
    std::size_t bytes = 0;
    for (const auto& block : blocks_) {
        bytes += block.mapped();
    }
    return bytes;
}

}  // namespace sscc
