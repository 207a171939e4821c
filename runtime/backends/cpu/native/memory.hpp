// Memory owned by an object: zeroed, aligned for vectors and, if large, for huge pages.
#pragma once

#include <cstddef>
#include <vector>

namespace sscc {

class Block {
  public:
    Block() = default;
    // At least 64-byte aligned; a page is allocated when it is first touched. Throws std::bad_alloc.
    // `guarded`: the memory ends at a page boundary, and the pages before and behind it are inaccessible.
    explicit Block(std::size_t bytes, bool guarded = false);
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();

    std::byte* data() const { return data_; }
    // Bytes of address space.
    std::size_t mapped() const { return mapped_; }

  private:
    void guard(std::size_t bytes);

    void* mapping_ = nullptr;
    std::size_t mapped_ = 0;
    std::byte* data_ = nullptr;
};

// Layout of pieces in a block, each at the start of a cache line.
class Layout {
  public:
    // Returns the offset of the next piece of `bytes`. Throws std::bad_alloc if the sum exceeds any machine.
    std::size_t place(std::size_t bytes);
    std::size_t bytes() const { return bytes_; }

  private:
    std::size_t bytes_ = 0;
};

// Pieces in one block, one after another; or each in a guarded block of its own.
class Pieces {
  public:
    explicit Pieces(bool guarded = false) : guarded_(guarded) {}
    // Returns the number of the next piece, of `bytes`. Throws std::bad_alloc.
    std::size_t place(std::size_t bytes);
    // Allocates all pieces. Throws std::bad_alloc.
    void allocate();
    std::byte* at(std::size_t piece) const;
    // Bytes of address space of all pieces.
    std::size_t mapped() const;

  private:
    bool guarded_;
    Layout layout_;
    std::vector<std::size_t> offsets_, sizes_;
    std::vector<Block> blocks_;
};

}  // namespace sscc
