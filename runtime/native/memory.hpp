// Memory that lives as long as its owner, zeroed, aligned for vectors and, where it is large, for huge pages.
#pragma once

#include <cstddef>

namespace sscc {

class Block {
  public:
    Block() = default;
    // 64-byte aligned at least; pages are touched by whoever uses them first. Throws std::bad_alloc.
    explicit Block(std::size_t bytes);
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();

    std::byte* data() const { return data_; }
    // What it takes of the address space.
    std::size_t mapped() const { return mapped_; }

  private:
    void* mapping_ = nullptr;
    std::size_t mapped_ = 0;
    std::byte* data_ = nullptr;
};

// Places things one after the other in a block, each at the start of a cache line.
class Layout {
  public:
    // The offset of the next `bytes`. Throws std::bad_alloc where the sum is beyond any machine.
    std::size_t place(std::size_t bytes);
    std::size_t bytes() const { return bytes_; }

  private:
    std::size_t bytes_ = 0;
};

}  // namespace sscc
