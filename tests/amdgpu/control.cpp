// SPDX-License-Identifier: Apache-2.0
//
// Branches, barriers, waits, the end of a wave, two instructions in one, and those that change
// nothing that is modelled: scheduling hints and operations on caches, of which there are none.
#include "wave.h"

namespace tessera {
namespace amdgpu {

namespace {

void nothing(Wave &, const Inst &) {}
void end(Wave &w, const Inst &) { w.state = State::kEnded; }

void wait(Wave &w, const Inst &i) {
  for (int c = 0; c < kCounters; ++c)
    if (i.max_wait[c] != 255) w.waits(static_cast<Counter>(c), i.max_wait[c]);
}

// LDS carries out what waves gave it before a barrier before what they give it after: nothing to wait for.
void barrier(Wave &w, const Inst &) { w.state = State::kAtBarrier; }
// gfx12 says apart that it has arrived, and that it goes on when all have.
void signal(Wave &w, const Inst &i) {
  if (i.op[0].kind != Kind::kConstant || i.op[0].word != 0xffffffffu || w.signalled)
    return w.fail("is a barrier that is not modelled");
  w.signalled = true;
}
void wait_barrier(Wave &w, const Inst &i) {
  if (i.op[0].kind != Kind::kConstant || static_cast<int16_t>(i.op[0].word) != -1 || !w.signalled)
    return w.fail("is a barrier that is not modelled");
  w.signalled = false;
  w.state = State::kAtBarrier;
}

uint64_t vcc(const Wave &w) { return w.lanes == 64 ? w.pair(kVcc) : w.s[kVcc]; }
void go(Wave &w, const Inst &i, bool there) {
  if (there) w.pc = static_cast<uint32_t>(i.target);
}
void branch(Wave &w, const Inst &i) { go(w, i, true); }
void branch_scc0(Wave &w, const Inst &i) { go(w, i, !w.scc); }
void branch_scc1(Wave &w, const Inst &i) { go(w, i, w.scc); }
void branch_vccz(Wave &w, const Inst &i) { go(w, i, vcc(w) == 0); }
void branch_vccnz(Wave &w, const Inst &i) { go(w, i, vcc(w) != 0); }
void branch_execz(Wave &w, const Inst &i) { go(w, i, w.exec() == 0); }
void branch_execnz(Wave &w, const Inst &i) { go(w, i, w.exec() != 0); }

} // namespace

// Both halves read before either writes.
void run_pair(Wave &w, const Inst &i) {
  const Inst &second = *i.pair;
  if (i.pair_order == 1) {
    second.run(w, second);
    i.run(w, i);
    return;
  }
  if (i.pair_order == 0) {
    i.run(w, i);
    second.run(w, second);
    return;
  }
  uint32_t before[64], after[64];
  uint32_t *row = w.row(i.op[0].reg);
  const size_t bytes = sizeof *row * static_cast<size_t>(w.lanes);
  memcpy(before, row, bytes);
  i.run(w, i);
  memcpy(after, row, bytes);
  memcpy(row, before, bytes);
  second.run(w, second);
  memcpy(row, after, bytes);
}

void add_control(Table &t) {
  for (const char *name : {"s_nop",
                           "s_sleep",
                           "s_clause",
                           "s_delay_alu",
                           "s_set_inst_prefetch_distance",
                           "s_inst_prefetch",
                           "s_setprio",
                           "s_waitcnt_depctr",
                           "s_wait_alu",
                           "s_sendmsg",
                           "s_icache_inv",
                           "s_dcache_inv",
                           "s_dcache_wb",
                           "s_waitcnt_expcnt",
                           "s_wait_expcnt",
                           "buffer_wbl2",
                           "buffer_inv",
                           "buffer_wbinvl1",
                           "buffer_wbinvl1_vol",
                           "buffer_gl0_inv",
                           "buffer_gl1_inv",
                           "global_inv",
                           "global_wb",
                           "global_wbinv",
                           "s_prefetch_inst",
                           "s_sched_barrier"})
    t[name] = {nothing, 0, 0, true};
  for (const char *name :
       {"s_waitcnt", "s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt", "s_wait_loadcnt",
        "s_wait_storecnt", "s_wait_dscnt", "s_wait_kmcnt", "s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt"})
    t[name] = {wait, 0, 0, true};
  for (const char *name : {"s_endpgm", "s_endpgm_saved"}) t[name] = {end, 0, 0, true};
  t["s_barrier"] = {barrier, 0, 0, true};
  t["s_barrier_signal"] = {signal, 0, 0};
  t["s_barrier_wait"] = {wait_barrier, 0, 0};
  const struct {
    const char *name;
    Handler run;
  } branches[] = {{"s_branch", branch},
                  {"s_cbranch_scc0", branch_scc0},
                  {"s_cbranch_scc1", branch_scc1},
                  {"s_cbranch_vccz", branch_vccz},
                  {"s_cbranch_vccnz", branch_vccnz},
                  {"s_cbranch_execz", branch_execz},
                  {"s_cbranch_execnz", branch_execnz}};
  for (const auto &b : branches) t[b.name] = {b.run, 0, 0};
}

} // namespace amdgpu
} // namespace tessera
