// SPDX-License-Identifier: Apache-2.0
//
// The vtable of a GPU backend: devices and their facts, what rows say of a problem, plans, and runs.
// Kernels, selection and launches have files of their own; here a run's pointers are checked and its
// workspace is found. Nothing here names a vendor: see device.h and runtime.h. The build says of which
// backend this is the vtable: its name, the kind of memory, and whether it is used only when named.
#include "tessera/backend.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/dtype.h"
#include "common/gpu/host/backward_plan.h"
#include "common/gpu/host/cost.h"
#include "common/gpu/host/kernels.h"
#include "common/gpu/host/launch.h"
#include "common/gpu/host/merge.h"
#include "common/gpu/host/runtime.h"
#include "common/gpu/host/select.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {
namespace {

struct Device {
  DeviceFacts told;   // as the runtime tells them, 0 for what it does not
  DeviceFacts ranked; // what selection goes by
};

struct State {
  tsr_host host;
  int32_t devices;
  Device device[1]; // `devices` of them
};

// ------------------------------------------------------------------------------------- devices

// "CUDA 13.0, driver 13.0; 2 devices: NVIDIA H200 (9.0), ...", and what is wrong with one.
void describe(const State &state, tsr_reason *detail) {
  char *text = detail->text;
  const size_t size = sizeof detail->text;
  runtime_version(text, size);
  size_t used = strlen(text);
  used += static_cast<size_t>(snprintf(text + used, size - used, "; %d device%s:",
                                       static_cast<int>(state.devices),
                                       state.devices == 1 ? "" : "s"));
  for (int32_t i = 0; i < state.devices && used < size; ++i) {
    const DeviceFacts &f = state.device[i].told;
    char arch[16];
    device_arch_text(f.arch, arch, sizeof arch);
    used += static_cast<size_t>(snprintf(text + used, size - used, "%s %s (%s%s)", i ? "," : "",
                                         f.name, arch, device_lacks(f)));
  }
}

// Figures that a driver or a virtual machine keeps to itself. Rows are ranked by them, so any of the right size will
// do; without one no row would have a time, and none would be taken.
DeviceFacts with_estimates(DeviceFacts facts) {
  if (facts.processors < 1) facts.processors = 64;
  if (!(facts.clock > 0)) facts.clock = 1.5e9;
  if (!(facts.bandwidth > 0)) facts.bandwidth = 1e12;
  return facts;
}

tsr_status probe(const tsr_host *host, void **out, tsr_reason *detail) {
  int32_t devices = 0;
  if (!runtime_probe(&devices, detail)) return TSR_STATUS_NOT_FOUND;
  const size_t size = offsetof(State, device) + static_cast<size_t>(devices) * sizeof(Device);
  State *state = static_cast<State *>(host->alloc(host->context, size, 64));
  if (!state) {
    snprintf(detail->text, sizeof detail->text, "no memory for the state (%zu bytes)", size);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  state->host = *host;
  state->devices = devices;
  for (int32_t i = 0; i < devices; ++i) {
    if (!runtime_facts(i, &state->device[i].told, detail)) {
      host->free(host->context, state);
      return TSR_STATUS_DEVICE_ERROR;
    }
    state->device[i].ranked = with_estimates(state->device[i].told);
  }
  describe(*state, detail);
  *out = state;
  return TSR_STATUS_SUCCESS;
}

void close(void *opaque) {
  State *state = static_cast<State *>(opaque);
  const tsr_host host = state->host;
  host.free(host.context, state);
}

int32_t device_count(void *opaque) { return static_cast<const State *>(opaque)->devices; }

tsr_status device_info(void *opaque, int32_t index, tsr_device_info *info, tsr_reason *reason) {
  const DeviceFacts &f = static_cast<const State *>(opaque)->device[index].told;
  (void)reason;
  info->device.kind = TSRI_GPU_KIND;
  info->device.index = index;
  memcpy(info->name, f.name, sizeof info->name);
  info->compute_units = f.processors;
  info->fast_bytes = f.shared_per_processor;
  info->mid_bytes = f.l2_bytes;
  info->memory_bytes = f.memory_bytes;
  // The device's own peaks, which the kernels of one architecture need not reach.
  info->peak_flops_f32 = f.clock * f.processors * device_flops_f32(f.arch);
  info->peak_flops_16 = f.clock * f.processors * device_flops(f.arch);
  info->bandwidth = f.bandwidth;
  return TSR_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------- plans

tsr_status kernel_info(void *state, int32_t index, tsr_kernel_info *info) {
  (void)state;
  const Row *row = row_at(index);
  if (!row) return TSR_STATUS_NOT_FOUND;
  info->name = row->name;
  info->pass = row->pass;
  return TSR_STATUS_SUCCESS;
}

tsr_status supports(void *opaque, int32_t kernel, const tsr_resolved *problem,
                    tsr_estimate *estimate, tsr_reason *reason) {
  const State *state = static_cast<const State *>(opaque);
  Choice choice;
  if (!select_row(state->device[problem->device.index].ranked, *row_at(kernel), *problem, &choice, reason))
    return TSR_STATUS_NOT_SUPPORTED;
  *estimate = choice.estimate;
  return TSR_STATUS_SUCCESS;
}

// Here and not in a run: it may load code, and a stream capture does not allow that. A merge and a keep mask have no
// plan, so theirs is loaded with the first one of any.
tsr_status prepare(int32_t device, const Row &row, tsr_reason *reason) {
  tsr_status status = TSR_STATUS_SUCCESS;
  for (const Entry &entry : row.entry)
    if (entry.function && status == TSR_STATUS_SUCCESS)
      status = runtime_prepare(device, entry.function, entry.shared_bytes, reason);
  if (status == TSR_STATUS_SUCCESS && row.family == Family::kBackward) status = backward_prepare(device, reason);
  return status == TSR_STATUS_SUCCESS ? merge_prepare(device, reason) : status;
}

tsr_status plan_create(void *opaque, int32_t kernel, const tsr_resolved *problem, void **out,
                       tsr_reason *reason) {
  const State *state = static_cast<const State *>(opaque);
  const Row *row = row_at(kernel);
  const int32_t device = problem->device.index;
  Choice choice;
  if (!select_row(state->device[device].ranked, *row, *problem, &choice, reason))
    return TSR_STATUS_NOT_SUPPORTED;
  const tsr_status prepared = prepare(device, *row, reason);
  if (prepared != TSR_STATUS_SUCCESS) return prepared;
  Plan *plan = static_cast<Plan *>(state->host.alloc(state->host.context, sizeof *plan, 64));
  if (!plan) {
    snprintf(reason->text, sizeof reason->text, "no memory for a plan of %zu bytes", sizeof *plan);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  plan->row = row;
  plan->problem = problem;
  plan->device = device;
  plan->early = row->family == Family::kBackward
                    ? backward_starts_early(device, *row, choice.cut.backward)
                    : (row->family == Family::kSplit || row->family == Family::kEngineForward) &&
                          runtime_starts_early(device, row->entry[kEntryMain].function);
  plan->choice = choice;
  *out = plan;
  return TSR_STATUS_SUCCESS;
}

void plan_destroy(void *opaque, void *plan) {
  const State *state = static_cast<const State *>(opaque);
  state->host.free(state->host.context, plan);
}

// ---------------------------------------------------------------------------------------- runs

// Whether a pointer of a run may be given to kernels on the device. An address that is not the device's
// would end the process's use of it, so each one is looked up.
tsr_status check_pointer(const char *name, const void *pointer, int32_t device,
                         tsr_reason *reason) {
  int32_t owner = -1;
  Memory where = Memory::kUnknown;
  if (!pointer) return TSR_STATUS_SUCCESS;
  const tsr_status found = runtime_where(pointer, &where, &owner, reason);
  if (found != TSR_STATUS_SUCCESS) {
    const tsr_reason why = *reason;
    snprintf(reason->text, sizeof reason->text, "%s: %.200s", name, why.text);
    return found;
  }
  if (where == Memory::kManaged || (where == Memory::kDevice && owner == device))
    return TSR_STATUS_SUCCESS;
  if (where == Memory::kDevice)
    snprintf(reason->text, sizeof reason->text,
             "%s: found memory of device %d at %p, accepted memory of device %d", name,
             static_cast<int>(owner), pointer, static_cast<int>(device));
  else
    snprintf(reason->text, sizeof reason->text,
             "%s: found %s at %p, accepted memory of device %d", name,
             where == Memory::kHost ? "host memory" : "memory the driver does not know (the host's?)",
             pointer, static_cast<int>(device));
  return TSR_STATUS_INVALID_ARGUMENT;
}

#define TSRI_FIELD(name) {#name, offsetof(tsr_args, name)}
constexpr struct {
  const char *name;
  size_t offset;
} kPointers[] = {
    TSRI_FIELD(q),          TSRI_FIELD(k),        TSRI_FIELD(v),         TSRI_FIELD(bias),
    TSRI_FIELD(mask),       TSRI_FIELD(alibi),    TSRI_FIELD(sink),      TSRI_FIELD(block_mask),
    TSRI_FIELD(q_scale),    TSRI_FIELD(k_scale),  TSRI_FIELD(v_scale),   TSRI_FIELD(cu_q),
    TSRI_FIELD(cu_k),       TSRI_FIELD(used_q),   TSRI_FIELD(used_k),    TSRI_FIELD(left_pad_q),
    TSRI_FIELD(left_pad_k), TSRI_FIELD(prefix),   TSRI_FIELD(diagonal),  TSRI_FIELD(page_table),
    TSRI_FIELD(rng_state),  TSRI_FIELD(o),        TSRI_FIELD(lse),       TSRI_FIELD(max_logit),
    TSRI_FIELD(dout),       TSRI_FIELD(dlse),     TSRI_FIELD(dq),        TSRI_FIELD(dk),
    TSRI_FIELD(dv),         TSRI_FIELD(dbias),    TSRI_FIELD(dsink),     TSRI_FIELD(workspace),
};
#undef TSRI_FIELD

tsr_status check_pointers(const tsr_args &args, int32_t device, tsr_reason *reason) {
  for (const auto &field : kPointers) {
    const void *pointer;
    memcpy(&pointer, reinterpret_cast<const char *>(&args) + field.offset, sizeof pointer);
    const tsr_status status = check_pointer(field.name, pointer, device, reason);
    if (status != TSR_STATUS_SUCCESS) return status;
  }
  return TSR_STATUS_SUCCESS;
}

tsr_status run(void *state, void *opaque, const tsr_args *args, tsr_reason *reason) {
  const Plan &plan = *static_cast<const Plan *>(opaque);
  const size_t needed = plan.choice.estimate.workspace;
  void *workspace = args->workspace, *lent = nullptr;
  (void)state;
  tsr_status status = check_pointers(*args, plan.device, reason);
  if (status == TSR_STATUS_SUCCESS && !workspace && needed) {
    status = runtime_allocate(plan.device, needed, args->stream, &lent, reason);
    if (status == TSR_STATUS_INVALID_ARGUMENT)
      snprintf(reason->text, sizeof reason->text,
               "workspace: found NULL inside a stream capture, accepted %zu bytes of the caller's",
               needed);
    workspace = lent;
  }
  if (status != TSR_STATUS_SUCCESS) return status;
  status = plan.row->family == Family::kBackward ? backward_launch(plan, *args, workspace, reason)
                                                 : launch_forward(plan, *args, workspace, reason);
  if (lent) runtime_release(plan.device, lent, args->stream);
  return status;
}

// Pointers of part `index`: the name tells which.
tsr_status check_part(const char *name, int64_t index, const void *pointer, int32_t device,
                      tsr_reason *reason) {
  char text[48];
  snprintf(text, sizeof text, "%s[%lld]", name, static_cast<long long>(index));
  return check_pointer(text, pointer, device, reason);
}

tsr_status merge(void *state, int32_t device, const tsr_merge_problem *problem,
                 const void *const *o_parts, const float *const *lse_parts, void *o, float *lse,
                 void *stream, tsr_reason *reason) {
  (void)state;
  if (problem->batch * problem->heads * problem->seq == 0) return TSR_STATUS_SUCCESS; // pointers point to nothing
  tsr_status status = check_pointer("o", o, device, reason);
  if (status == TSR_STATUS_SUCCESS) status = check_pointer("lse", lse, device, reason);
  for (int64_t t = 0; t < problem->parts && status == TSR_STATUS_SUCCESS; ++t) {
    status = check_part("o_parts", t, o_parts[t], device, reason);
    if (status == TSR_STATUS_SUCCESS)
      status = check_part("lse_parts", t, lse_parts[t], device, reason);
  }
  if (status != TSR_STATUS_SUCCESS) return status;
  return merge_launch(device, *problem, o_parts, lse_parts, o, lse, stream, reason);
}

tsr_status dropout_mask(void *state, int32_t device, const tsr_dropout_problem *problem,
                        uint8_t *mask, void *stream, tsr_reason *reason) {
  (void)state;
  if (problem->batch * problem->heads == 0 || problem->seq_q == 0 || problem->seq_k == 0) return TSR_STATUS_SUCCESS;
  const tsr_status status = check_pointer("mask", mask, device, reason);
  if (status != TSR_STATUS_SUCCESS) return status;
  return keep_mask_launch(device, *problem, mask, stream, reason);
}

#define TSRI_TEXT_OF(name) #name
#define TSRI_TEXT(name) TSRI_TEXT_OF(name)

const tsr_backend backend = {
    sizeof(tsr_backend),
    TSR_BACKEND_ABI,
    TSRI_TEXT(TSRI_GPU_BACKEND),
    TSRI_GPU_KIND,
    TSRI_GPU_NAMED_ONLY,
    probe,
    close,
    device_count,
    device_info,
    kernel_info,
    supports,
    plan_create,
    plan_destroy,
    run,
    merge,
    dropout_mask,
};

} // namespace
} // namespace TSRI_GPU_BACKEND
} // namespace tessera

// One more step, so that the name is expanded before it becomes part of the symbol.
#define TSRI_ENTRY_OF(name) TSR_BACKEND_ENTRY(name)
TSRI_ENTRY_OF(TSRI_GPU_BACKEND) {
  return host_abi == TSR_BACKEND_ABI ? &tessera::TSRI_GPU_BACKEND::backend : nullptr;
}
