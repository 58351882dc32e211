// SPDX-License-Identifier: Apache-2.0
//
// A launch: registers as the descriptor asks for them, blocks one after the other, the waves of a
// block one at a time up to their next barrier, in rising or falling order. What a device leaves
// undefined (other registers, LDS) begins as NaN.
#include <stdio.h>

#include <algorithm>

#include "disassemble.h"
#include "executor.h"
#include "wave.h"

namespace tessera {
namespace amdgpu {

void run_pair(Wave &w, const Inst &i);

namespace {

constexpr uint32_t kPoison = 0xffffffffu; // a NaN, and no useful address
constexpr uint32_t kLargestLds = 65536;

// hsa_kernel_dispatch_packet_t.
struct Packet {
  uint16_t header, setup, block[3], reserved;
  uint32_t grid[3], private_bytes, lds_bytes;
  uint64_t kernel, kernarg, reserved2, signal;
};
static_assert(sizeof(Packet) == 64, "as the architecture defines it");

struct Descriptor {
  uint32_t rsrc1, rsrc2, rsrc3;
  uint16_t properties, preload;
  explicit Descriptor(const unsigned char *d) {
    memcpy(&rsrc3, d + 44, 4);
    memcpy(&rsrc1, d + 48, 4);
    memcpy(&rsrc2, d + 52, 4);
    memcpy(&properties, d + 56, 2);
    memcpy(&preload, d + 58, 2);
  }
};

struct Launch {
  const Kernel &kernel;
  const LaunchOptions &options;
  Descriptor descriptor;
  Family family;
  MemoryMap memory;
  Packet packet = {};
  std::vector<unsigned char> kernarg;
  Lds lds;
  std::vector<Wave> waves;
  LaunchCounts counts;
  std::string error;

  Launch(const Kernel &k, const LaunchOptions &o)
      : kernel(k), options(o), descriptor(k.object->base() + k.descriptor) {
    const std::string &device = k.object->device();
    family = device.compare(0, 4, "gfx9") == 0    ? Family::kGfx9
             : device.compare(0, 5, "gfx11") == 0 ? Family::kGfx11
                                                  : Family::kGfx12;
  }

  uint32_t threads() const { return options.block.x * options.block.y * options.block.z; }

  // Modes and sizes that are not modelled, or that a device would refuse.
  std::string refusal() const {
    const uint32_t lds_bytes = kernel.static_lds + options.dynamic_lds;
    if (kernel.wave != kernel.object->wave())
      return "waves of " + std::to_string(kernel.wave) + " lanes are not modelled";
    if (kernel.scratch)
      return "it uses " + std::to_string(kernel.scratch) + " bytes of scratch memory a lane";
    if (descriptor.preload) return "preloaded arguments are not modelled";
    // Bits 12-13: round to nearest even; 16-17, 18-19: denormals are kept.
    if ((descriptor.rsrc1 >> 12 & 0xf) != 0 || (descriptor.rsrc1 >> 16 & 0xf) != 0xf)
      return "its floating-point mode is not modelled: only rounding to nearest with denormals is";
    if (lds_bytes > kLargestLds) return std::to_string(lds_bytes) + " bytes of LDS, a block can have 65536";
    if (threads() == 0 || options.grid.x == 0 || options.grid.y == 0 || options.grid.z == 0)
      return "an empty grid";
    if (threads() > kernel.max_threads)
      return "blocks of " + std::to_string(threads()) + " threads, it was compiled for " +
             std::to_string(kernel.max_threads) + " at most";
    // A partial last wave would run matrix instructions with lanes off.
    if (threads() % kernel.wave)
      return "blocks of " + std::to_string(threads()) + " threads are no whole waves";
    return "";
  }

  void hide(const Kernel::Hidden &h) {
    const Extent &g = options.grid, &b = options.block;
    const struct {
      const char *kind;
      uint64_t value;
    } known[] = {{"hidden_block_count_x", g.x},
                 {"hidden_block_count_y", g.y},
                 {"hidden_block_count_z", g.z},
                 {"hidden_group_size_x", b.x},
                 {"hidden_group_size_y", b.y},
                 {"hidden_group_size_z", b.z},
                 {"hidden_dynamic_lds_size", options.dynamic_lds},
                 {"hidden_grid_dims", g.z * b.z > 1   ? 3u
                                      : g.y * b.y > 1 ? 2u
                                                      : 1u}};
    if (h.bytes > 8 || h.offset + uint64_t{h.bytes} > kernarg.size()) return;
    uint64_t value = 0; // remainders, offsets: whole blocks from 0 on
    for (const auto &k : known)
      if (h.kind == k.kind) value = k.value;
    memcpy(kernarg.data() + h.offset, &value, h.bytes);
  }

  void prepare(const void *arguments, size_t bytes) {
    kernarg.assign(std::max<size_t>(kernel.kernarg_bytes, 16), 0xff);
    memcpy(kernarg.data(), arguments, std::min(bytes, kernarg.size()));
    for (const Kernel::Hidden &h : kernel.hidden) hide(h);
    const Extent &g = options.grid, &b = options.block;
    packet.setup = 3;
    const uint32_t block[3] = {b.x, b.y, b.z}, grid[3] = {g.x * b.x, g.y * b.y, g.z * b.z};
    for (int n = 0; n < 3; ++n) {
      packet.block[n] = static_cast<uint16_t>(block[n]);
      packet.grid[n] = grid[n];
    }
    packet.lds_bytes = kernel.static_lds + options.dynamic_lds;
    packet.kernarg = reinterpret_cast<uint64_t>(kernarg.data());
    auto readable = [this](const void *begin, size_t size) {
      const uint64_t at = reinterpret_cast<uint64_t>(begin);
      memory.ranges.push_back({at, at + size, false});
    };
    readable(kernarg.data(), kernarg.size());
    readable(&packet, sizeof packet);
    readable(kernel.object->base(), kernel.object->size());
    std::sort(memory.ranges.begin(), memory.ranges.end(),
              [](const MemoryMap::Range &one, const MemoryMap::Range &two) { return one.begin < two.begin; });
    waves.resize(threads() / kernel.wave);
    lds.bytes.resize(packet.lds_bytes);
    const size_t words = packet.lds_bytes / 4 + 1;
    for (std::vector<uint32_t> *marks : {&lds.words.written, &lds.words.read, &lds.apart}) marks->resize(words);
    for (std::vector<uint32_t> *marks : {&lds.each.written, &lds.each.read}) marks->resize(4 * words);
  }

  // User registers in the order of the architecture, then the block's number.
  void set_scalars(Wave &w, const Extent &block) {
    int n = 0;
    auto wide = [&](int bit, uint64_t value) {
      if (!(descriptor.properties >> bit & 1)) return;
      w.set_pair(n, value);
      n += 2;
    };
    const uint64_t nowhere = ~uint64_t{0};
    if (descriptor.properties & 1) n += 4; // scratch buffer
    wide(1, reinterpret_cast<uint64_t>(&packet));
    wide(2, nowhere); // queue
    wide(3, reinterpret_cast<uint64_t>(kernarg.data()));
    wide(4, nowhere); // dispatch number
    wide(5, nowhere); // scratch
    if (descriptor.properties >> 6 & 1) w.s[n++] = 0;
    n = std::max<int>(n, descriptor.rsrc2 >> 1 & 0x1f);
    if (family == Family::kGfx12) {
      w.s[kTtmp + 9] = block.x;
      w.s[kTtmp + 7] = block.y | block.z << 16;
      return;
    }
    const uint32_t numbers[3] = {block.x, block.y, block.z};
    for (int d = 0; d < 3; ++d)
      if (descriptor.rsrc2 >> (7 + d) & 1) w.s[n++] = numbers[d];
  }

  void start(Wave &w, int number, const Extent &block) {
    w.family = family;
    w.flushes_halves = kernel.object->device() == "gfx90a";
    w.lanes = static_cast<int>(kernel.wave);
    w.state = State::kRuns;
    w.signalled = false;
    w.scc = 1;
    w.pc = 0;
    w.number = number;
    w.lds = &lds;
    w.memory = &memory;
    w.code = reinterpret_cast<uint64_t>(kernel.object->base()) + kernel.entry;
    w.v.assign(static_cast<size_t>(kVectors) * kernel.wave, kPoison);
    std::fill(std::begin(w.s), std::end(w.s), kPoison);
    w.s[kNull] = 0;
    w.set_pair(kExec, w.all());
    for (auto &queue : w.under_way) queue.clear();
    w.under_way_total = 0;
    memset(w.owed_vector, 0, sizeof w.owed_vector);
    memset(w.owed_scalar, 0, sizeof w.owed_scalar);
    set_scalars(w, block);
    // Thread x, y, z of the block in 10 bits each.
    const Extent &size = options.block;
    for (int l = 0; l < w.lanes; ++l) {
      const uint32_t t = static_cast<uint32_t>(number) * kernel.wave + static_cast<uint32_t>(l);
      w.row(0)[l] = t % size.x | t / size.x % size.y << 10 | t / (size.x * size.y) << 20;
    }
  }

  // Until the wave waits, ends or fails.
  void run(Wave &w, const Program &program) {
    const Inst *const code = program.code.data();
    uint64_t n = 0;
    const uint64_t left = options.budget - counts.instructions;
    const Inst *i = code;
    while (w.state == State::kRuns) {
      i = code + w.pc;
      w.pc = i->next;
      if (options.visits && i->address < kernel.code_bytes) ++options.visits[i->address / 4];
      if (++n > left)
        w.fail("is one instruction more than the launch's budget");
      else if (w.under_way_total && w.owes(*i))
        break;
      else if (i->pair)
        run_pair(w, *i);
      else
        i->run(w, *i);
    }
    counts.instructions += n;
    if (w.state != State::kFailed) return;
    char where[64];
    snprintf(where, sizeof where, ", wave %d, 0x%x: ", w.number, i->address);
    error = where + i->text + ": " + w.error;
  }

  bool run_block(const Extent &block, const Program &program) {
    std::fill(lds.bytes.begin(), lds.bytes.end(), static_cast<unsigned char>(0xff));
    for (std::vector<uint32_t> *marks : {&lds.words.written, &lds.words.read, &lds.apart})
      std::fill(marks->begin(), marks->end(), 0);
    lds.barriers = 1;
    for (size_t n = 0; n < waves.size(); ++n) start(waves[n], static_cast<int>(n), block);
    for (bool live = true; live;) {
      live = false;
      for (size_t k = 0; k < waves.size(); ++k) {
        Wave &w = waves[options.backwards ? waves.size() - 1 - k : k];
        if (w.state == State::kEnded) continue;
        w.state = State::kRuns;
        run(w, program);
        if (w.state == State::kFailed) {
          char where[64];
          snprintf(where, sizeof where, ": block %u,%u,%u", block.x, block.y, block.z);
          error = kernel.name + where + error;
          return false;
        }
        live = live || w.state == State::kAtBarrier;
      }
      ++lds.barriers;
    }
    return true;
  }

  bool run_grid(const Program &program) {
    const Extent &g = options.grid;
    const uint64_t blocks = uint64_t{g.x} * g.y * g.z;
    for (uint64_t k = 0; k < blocks; ++k) {
      const uint64_t n = options.backwards ? blocks - 1 - k : k;
      Extent block;
      block.x = static_cast<uint32_t>(n % g.x);
      block.y = static_cast<uint32_t>(n / g.x % g.y);
      block.z = static_cast<uint32_t>(n / g.x / g.y);
      if (!run_block(block, program)) return false;
    }
    for (const Wave &w : waves) counts.matrix += w.matrix;
    return true;
  }
};

bool make_program(Kernel *kernel, std::string *error) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (kernel->program) return true;
  std::vector<Line> lines;
  const CodeObject &object = *kernel->object;
  if (!disassemble(object.device(), object.base() + kernel->entry, kernel->code_bytes, &lines, error))
    return false;
  auto program = std::make_shared<Program>();
  decode(lines, Family::kGfx9, program.get());
  kernel->program = program;
  return true;
}

} // namespace

bool Executor::add_block(void *begin, size_t bytes, bool writable) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t at = reinterpret_cast<uintptr_t>(begin);
  const auto after = blocks_.lower_bound(at);
  if (bytes == 0 || (after != blocks_.end() && after->first - at < bytes)) return false;
  if (after != blocks_.begin()) {
    const auto before = std::prev(after);
    if (at - before->first < before->second.bytes) return false;
  }
  blocks_[at] = {bytes, writable};
  return true;
}

bool Executor::remove_block(void *begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return blocks_.erase(reinterpret_cast<uintptr_t>(begin)) == 1;
}

bool Executor::knows(const void *begin, size_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t at = reinterpret_cast<uintptr_t>(begin);
  auto b = blocks_.upper_bound(at);
  if (b == blocks_.begin()) return false;
  --b;
  return at - b->first < b->second.bytes && bytes <= b->second.bytes - (at - b->first);
}

bool Executor::launch(Kernel *kernel, const LaunchOptions &options, const void *kernarg, size_t bytes,
                      std::string *error, LaunchCounts *counts) {
  if (!make_program(kernel, error)) return false;
  Launch launch(*kernel, options);
  const std::string refused = launch.refusal();
  if (!refused.empty()) {
    *error = kernel->name + ": " + refused;
    return false;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &b : blocks_)
      launch.memory.ranges.push_back({b.first, b.first + b.second.bytes, b.second.writable});
  }
  launch.prepare(kernarg, bytes);
  const bool good = launch.run_grid(*kernel->program);
  if (!good) *error = launch.error;
  if (counts) *counts = launch.counts;
  return good;
}

} // namespace amdgpu
} // namespace tessera
