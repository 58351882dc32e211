// SPDX-License-Identifier: Apache-2.0
//
// The metadata note of a code object (amdhsa.kernels): MessagePack, of which the forms that LLVM
// writes are read: maps, arrays, strings, unsigned integers, booleans and nil.
#ifndef TESSERA_TESTS_AMDGPU_METADATA_H_
#define TESSERA_TESTS_AMDGPU_METADATA_H_

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace amdgpu {

struct Value {
  enum class Type { kNil, kNumber, kText, kArray, kMap } type = Type::kNil;
  uint64_t number = 0;
  std::string text;
  std::vector<Value> array;
  std::vector<std::pair<std::string, Value>> map;

  const Value *find(const char *key) const; // of a map; NULL: none
  uint64_t number_of(const char *key, uint64_t otherwise) const;
  std::string text_of(const char *key) const;
};

// false: not understood.
bool read_metadata(const unsigned char *data, size_t bytes, Value *value);

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_METADATA_H_
