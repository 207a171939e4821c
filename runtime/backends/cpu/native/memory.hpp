// Memory that lives as long as its owner, zeroed, aligned for vectors and, where it is large, for huge pages.
#pragma once

#include <cstddef>
#include <vector>

namespace sscc {

class Block {
  public:
    Block() = default;
    // 64-byte aligned at least; pages are touched by whoever uses them first. Throws std::bad_alloc.
    // `guarded`: it ends where a page does, and neither that nor what lies before it can be touched.
    explicit Block(std::size_t bytes, bool guarded = false);
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();

    std::byte* data() const { return data_; }
    // What it takes of the address space.
    std::size_t mapped() const { return mapped_; }

  private:
    void guard(std::size_t bytes);

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

// Things in one block, one after the other; or each in a guarded block of its own.
class Pieces {
  public:
    explicit Pieces(bool guarded = false) : guarded_(guarded) {}
    // The number of the next piece, of `bytes`. Throws std::bad_alloc.
    std::size_t place(std::size_t bytes);
    // Makes room for all that was placed. Throws std::bad_alloc.
    void allocate();
    std::byte* at(std::size_t piece) const;
    // What they take of the address space.
    std::size_t mapped() const;

  private:
    bool guarded_;
    Layout layout_;
    std::vector<std::size_t> offsets_, sizes_;
    std::vector<Block> blocks_;
};

}  // namespace sscc
