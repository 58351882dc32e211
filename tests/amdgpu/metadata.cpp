// SPDX-License-Identifier: Apache-2.0
#include "metadata.h"

namespace tessera {
namespace amdgpu {

namespace {

struct Reader {
  const unsigned char *at, *end;
  int depth = 0;

  bool number(int bytes, uint64_t *x) {
    if (end - at < bytes) return false;
    *x = 0;
    for (int i = 0; i < bytes; ++i) *x = *x << 8 | *at++;
    return true;
  }
  bool text(uint64_t bytes, std::string *x) {
    if (static_cast<uint64_t>(end - at) < bytes) return false;
    x->assign(reinterpret_cast<const char *>(at), bytes);
    at += bytes;
    return true;
  }
  bool map(uint64_t n, Value *v) {
    v->type = Value::Type::kMap;
    for (uint64_t i = 0; i < n; ++i) {
      Value key, value;
      if (!read(&key) || key.type != Value::Type::kText || !read(&value)) return false;
      v->map.emplace_back(key.text, std::move(value));
    }
    return true;
  }
  bool array(uint64_t n, Value *v) {
    v->type = Value::Type::kArray;
    for (uint64_t i = 0; i < n; ++i) {
      v->array.emplace_back();
      if (!read(&v->array.back())) return false;
    }
    return true;
  }
  bool read_form(unsigned char form, Value *v) {
    uint64_t n = 0;
    if (form < 0x80) n = form;
    if (form < 0x80 || (form >= 0xcc && form <= 0xcf) || form == 0xc2 || form == 0xc3) {
      v->type = Value::Type::kNumber;
      v->number = form == 0xc3 ? 1 : n;
      return form < 0xcc || number(1 << (form - 0xcc), &v->number);
    }
    if (form < 0x90) return map(form & 15u, v);
    if (form < 0xa0) return array(form & 15u, v);
    if (form < 0xc0 || (form >= 0xd9 && form <= 0xdb)) {
      v->type = Value::Type::kText;
      if (form < 0xc0) return text(form & 31u, &v->text);
      return number(1 << (form - 0xd9), &n) && text(n, &v->text);
    }
    if (form == 0xc0) return true;
    if (form == 0xdc || form == 0xdd) return number(form == 0xdc ? 2 : 4, &n) && array(n, v);
    if (form == 0xde || form == 0xdf) return number(form == 0xde ? 2 : 4, &n) && map(n, v);
    return false;
  }
  bool read(Value *v) {
    if (at == end || depth > 16) return false;
    ++depth;
    const bool good = read_form(*at++, v);
    --depth;
    return good;
  }
};

} // namespace

const Value *Value::find(const char *key) const {
  for (const auto &entry : map)
    if (entry.first == key) return &entry.second;
  return nullptr;
}

uint64_t Value::number_of(const char *key, uint64_t otherwise) const {
  const Value *v = find(key);
  return v && v->type == Type::kNumber ? v->number : otherwise;
}

std::string Value::text_of(const char *key) const {
  const Value *v = find(key);
  return v ? v->text : std::string();
}

bool read_metadata(const unsigned char *data, size_t bytes, Value *value) {
  Reader reader = {data, data + bytes};
  return reader.read(value);
}

} // namespace amdgpu
} // namespace tessera
