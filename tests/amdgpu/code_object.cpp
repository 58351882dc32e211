// SPDX-License-Identifier: Apache-2.0
//
// Loads a code object: an ELF file of machine 224 whose segments, dynamic symbols, relative
// relocations and metadata note are read. Every offset is checked against the image, so that a
// damaged one is refused.
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "executor.h"
#include "metadata.h"

namespace tessera {
namespace amdgpu {

namespace {

constexpr uint32_t kAmdGpu = 224, kRelative64 = 13, kNoteMetadata = 32;
constexpr uint64_t kLargest = uint64_t{1} << 30;

struct Device {
  uint32_t machine;
  const char *name;
  uint32_t wave;
};
// e_flags & 0xff, see LLVM's AMDGPU usage.
constexpr Device kDevices[] = {
    {0x3f, "gfx90a", 64}, {0x4c, "gfx942", 64}, {0x41, "gfx1100", 32}, {0x4e, "gfx1201", 32}};

} // namespace

struct Loader {
  const unsigned char *image;
  size_t bytes;
  std::string *error;
  Elf64_Ehdr header = {};
  std::unique_ptr<CodeObject> object;
  Value metadata;
  std::map<std::string, Elf64_Sym> symbols;

  bool fail(const std::string &why) {
    *error = "code object: " + why;
    return false;
  }
  bool holds(uint64_t offset, uint64_t size) const { return offset <= bytes && size <= bytes - offset; }
  template <class T>
  bool read(uint64_t offset, T *x) const {
    if (!holds(offset, sizeof *x)) return false;
    memcpy(x, image + offset, sizeof *x);
    return true;
  }

  // Where the file ends, by its headers alone.
  static size_t measure(const unsigned char *image) {
    Elf64_Ehdr h;
    memcpy(&h, image, sizeof h);
    uint64_t end = h.e_shoff + static_cast<uint64_t>(h.e_shnum) * h.e_shentsize;
    for (int i = 0; i < h.e_phnum; ++i) {
      Elf64_Phdr p;
      memcpy(&p, image + h.e_phoff + static_cast<uint64_t>(i) * h.e_phentsize, sizeof p);
      if (p.p_offset + p.p_filesz > end) end = p.p_offset + p.p_filesz;
    }
    for (int i = 0; i < h.e_shnum; ++i) {
      Elf64_Shdr s;
      memcpy(&s, image + h.e_shoff + static_cast<uint64_t>(i) * h.e_shentsize, sizeof s);
      if (s.sh_type != SHT_NOBITS && s.sh_offset + s.sh_size > end) end = s.sh_offset + s.sh_size;
    }
    return end;
  }

  bool check_header() {
    if (!read(0, &header) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kAmdGpu)
      return fail("not an ELF file for AMD GPUs");
    for (const Device &d : kDevices)
      if (d.machine == (header.e_flags & 0xff)) {
        object->device_ = d.name;
        object->wave_ = d.wave;
        return true;
      }
    return fail("machine " + std::to_string(header.e_flags & 0xff) +
                " is none of gfx90a, gfx942, gfx1100, gfx1201");
  }

  bool load_segments() {
    uint64_t top = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr p;
        if (!read(header.e_phoff + static_cast<uint64_t>(i) * header.e_phentsize, &p))
          return fail("program headers beyond the end");
        if (p.p_type == PT_NOTE && pass == 1 && !read_notes(p)) return false;
        if (p.p_type != PT_LOAD) continue;
        if (!holds(p.p_offset, p.p_filesz) || p.p_filesz > p.p_memsz || p.p_vaddr > kLargest ||
            p.p_memsz > kLargest)
          return fail("a segment beyond the end");
        if (p.p_vaddr + p.p_memsz > top) top = p.p_vaddr + p.p_memsz;
        if (pass == 1) memcpy(object->base_ + p.p_vaddr, image + p.p_offset, p.p_filesz);
      }
      if (pass == 0) {
        object->size_ = (top + 4095) / 4096 * 4096;
        object->base_ =
            static_cast<unsigned char *>(aligned_alloc(4096, object->size_ ? object->size_ : 4096));
        if (!object->base_) return fail("out of memory");
        memset(object->base_, 0, object->size_);
      }
    }
    return true;
  }

  bool read_notes(const Elf64_Phdr &p) {
    uint64_t at = p.p_offset;
    const uint64_t end = p.p_offset + p.p_filesz;
    if (!holds(p.p_offset, p.p_filesz)) return fail("a note beyond the end");
    while (at + 12 <= end) {
      Elf64_Nhdr n;
      if (!read(at, &n)) return fail("a note beyond the end");
      const uint64_t data = at + 12 + (n.n_namesz + 3) / 4 * 4;
      if (data + n.n_descsz > end) return fail("a note beyond the end");
      if (n.n_type == kNoteMetadata && !read_metadata(image + data, n.n_descsz, &metadata))
        return fail("metadata not understood");
      at = data + (n.n_descsz + 3) / 4 * 4;
    }
    return true;
  }

  bool read_section(const Elf64_Shdr &section) {
    if (section.sh_type == SHT_DYNSYM) {
      Elf64_Shdr names;
      if (!read(header.e_shoff + uint64_t{section.sh_link} * header.e_shentsize, &names))
        return fail("section headers beyond the end");
      for (uint64_t k = 0; k < section.sh_size / sizeof(Elf64_Sym); ++k) {
        Elf64_Sym s;
        if (!read(section.sh_offset + k * sizeof s, &s) || s.st_name >= names.sh_size ||
            !holds(names.sh_offset, names.sh_size))
          return fail("a symbol beyond the end");
        const char *name = reinterpret_cast<const char *>(image + names.sh_offset + s.st_name);
        symbols[std::string(name, strnlen(name, names.sh_size - s.st_name))] = s;
      }
    }
    if (section.sh_type == SHT_RELA) {
      for (uint64_t k = 0; k < section.sh_size / sizeof(Elf64_Rela); ++k) {
        Elf64_Rela r;
        if (!read(section.sh_offset + k * sizeof r, &r)) return fail("a relocation beyond the end");
        if (ELF64_R_TYPE(r.r_info) != kRelative64 || r.r_offset + 8 > object->size_)
          return fail("relocation of type " + std::to_string(ELF64_R_TYPE(r.r_info)));
        const uint64_t value = reinterpret_cast<uint64_t>(object->base_) + static_cast<uint64_t>(r.r_addend);
        memcpy(object->base_ + r.r_offset, &value, 8);
      }
    }
    return true;
  }

  bool read_sections() {
    for (int i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr section;
      if (!read(header.e_shoff + static_cast<uint64_t>(i) * header.e_shentsize, &section))
        return fail("section headers beyond the end");
      if (!read_section(section)) return false;
    }
    return true;
  }

  bool add_kernel(const Value &about) {
    Kernel k;
    k.name = about.text_of(".name");
    const auto descriptor = symbols.find(about.text_of(".symbol"));
    const auto code = symbols.find(k.name);
    if (descriptor == symbols.end() || code == symbols.end() ||
        descriptor->second.st_value + 64 > object->size_)
      return fail("no descriptor of kernel " + k.name);
    k.descriptor = descriptor->second.st_value;
    const unsigned char *d = object->base_ + k.descriptor;
    int64_t entry = 0;
    memcpy(&k.static_lds, d, 4);
    memcpy(&k.scratch, d + 4, 4);
    memcpy(&k.kernarg_bytes, d + 8, 4);
    memcpy(&entry, d + 16, 8);
    k.entry = k.descriptor + static_cast<uint64_t>(entry);
    k.code_bytes = code->second.st_size;
    if (k.entry != code->second.st_value || k.entry > object->size_ || k.code_bytes > object->size_ - k.entry)
      return fail("code of kernel " + k.name + " is not where its descriptor says");
    k.wave = static_cast<uint32_t>(about.number_of(".wavefront_size", object->wave_));
    k.max_threads = static_cast<uint32_t>(about.number_of(".max_flat_workgroup_size", 1024));
    k.vgprs = static_cast<uint32_t>(about.number_of(".vgpr_count", 0));
    k.agprs = static_cast<uint32_t>(about.number_of(".agpr_count", 0));
    k.sgprs = static_cast<uint32_t>(about.number_of(".sgpr_count", 0));
    if (const Value *args = about.find(".args"))
      for (const Value &a : args->array) {
        const std::string kind = a.text_of(".value_kind");
        if (kind.compare(0, 7, "hidden_") == 0)
          k.hidden.push_back({kind, static_cast<uint32_t>(a.number_of(".offset", 0)),
                              static_cast<uint32_t>(a.number_of(".size", 0))});
      }
    k.object = object.get();
    object->kernels_.emplace(k.name, std::move(k));
    return true;
  }

  bool load() {
    if (!check_header() || !load_segments() || !read_sections()) return false;
    const Value *kernels = metadata.find("amdhsa.kernels");
    if (!kernels) return fail("no metadata of kernels");
    for (const Value &k : kernels->array)
      if (!add_kernel(k)) return false;
    return true;
  }
};

std::unique_ptr<CodeObject> CodeObject::load(const void *image, size_t bytes, std::string *error) {
  const unsigned char *data = static_cast<const unsigned char *>(image);
  if (bytes == 0 && memcmp(data, ELFMAG, SELFMAG) == 0) bytes = Loader::measure(data);
  Loader loader = {};
  loader.image = data;
  loader.bytes = bytes;
  loader.error = error;
  loader.object.reset(new CodeObject);
  if (!loader.load()) return nullptr;
  return std::move(loader.object);
}

CodeObject::~CodeObject() { free(base_); }

Kernel *CodeObject::find(const std::string &name) {
  const auto k = kernels_.find(name);
  return k == kernels_.end() ? nullptr : &k->second;
}

std::vector<std::string> CodeObject::names() const {
  std::vector<std::string> names;
  for (const auto &k : kernels_) names.push_back(k.first);
  return names;
}

} // namespace amdgpu
} // namespace tessera
