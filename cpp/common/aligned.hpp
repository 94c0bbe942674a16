// Arrays that start on a cache line: a 64-byte vector that straddles two lines costs twice.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace dpinfer {

inline constexpr std::size_t kCacheLine = 64;

template <typename T>
struct CacheLineAllocator {
  using value_type = T;

  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{kCacheLine})); }
  void deallocate(T* pointer, std::size_t) { ::operator delete(pointer, std::align_val_t{kCacheLine}); }

  template <typename U>
  bool operator==(const CacheLineAllocator<U>&) const {
    return true;
  }
};

template <typename T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace dpinfer
