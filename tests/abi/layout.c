// SPDX-License-Identifier: Apache-2.0
//
// The layout of every public struct and the value of every public enumerator, pinned for LP64 targets
// (x86-64, AArch64). Programs built against an older header pass these structs by pointer with their own
// struct_size, so a field may be appended (add its line, change the SIZE) but never moved, and a value
// never changes. A plain program: it runs in cross builds too.
#include <stddef.h>
#include <stdio.h>
#include <tessera/backend.h>

#define SIZE(type, bytes) {"sizeof(" #type ")", (long long)sizeof(type), bytes}
#define AT(type, field, offset) {#type "." #field, (long long)offsetof(type, field), offset}
#define VALUE(name, value) {#name, (long long)(name), value}

static const struct {
  const char *what;
  long long found, pinned;
} rows[] = {
  SIZE(tsr_device, 8),
  AT(tsr_device, kind, 0), AT(tsr_device, index, 4),

  SIZE(tsr_tensor, 80),
  AT(tsr_tensor, data, 0), AT(tsr_tensor, dtype, 8), AT(tsr_tensor, reserved, 12),
  AT(tsr_tensor, shape, 16), AT(tsr_tensor, stride, 48),

  SIZE(tsr_allocator, 24),
  AT(tsr_allocator, user, 0), AT(tsr_allocator, alloc, 8), AT(tsr_allocator, free, 16),

  SIZE(tsr_runner, 24),
  AT(tsr_runner, user, 0), AT(tsr_runner, threads, 8), AT(tsr_runner, run, 16),

  SIZE(tsr_context_options, 112),
  AT(tsr_context_options, struct_size, 0), AT(tsr_context_options, allocator, 8),
  AT(tsr_context_options, runner, 32), AT(tsr_context_options, threads, 56),
  AT(tsr_context_options, reserved, 60), AT(tsr_context_options, log, 64),
  AT(tsr_context_options, log_user, 72), AT(tsr_context_options, backend, 80),
  AT(tsr_context_options, kernel, 88), AT(tsr_context_options, plugin_path, 96),
  AT(tsr_context_options, cpu_target, 104),

  SIZE(tsr_backend_info, 56),
  AT(tsr_backend_info, struct_size, 0), AT(tsr_backend_info, name, 8),
  AT(tsr_backend_info, origin, 16), AT(tsr_backend_info, available, 24),
  AT(tsr_backend_info, named_only, 28), AT(tsr_backend_info, device_kind, 32),
  AT(tsr_backend_info, devices, 36), AT(tsr_backend_info, reason, 40),
  AT(tsr_backend_info, detail, 48),

  SIZE(tsr_device_info, 200),
  AT(tsr_device_info, struct_size, 0), AT(tsr_device_info, device, 8),
  AT(tsr_device_info, name, 16), AT(tsr_device_info, compute_units, 144),
  AT(tsr_device_info, reserved, 148), AT(tsr_device_info, fast_bytes, 152),
  AT(tsr_device_info, mid_bytes, 160), AT(tsr_device_info, memory_bytes, 168),
  AT(tsr_device_info, peak_flops_f32, 176), AT(tsr_device_info, peak_flops_16, 184),
  AT(tsr_device_info, bandwidth, 192),

  SIZE(tsr_layout, 48),
  AT(tsr_layout, dtype, 0), AT(tsr_layout, order, 4), AT(tsr_layout, stride, 8),
  AT(tsr_layout, alignment, 40),

  SIZE(tsr_window, 24),
  AT(tsr_window, kind, 0), AT(tsr_window, reserved, 4), AT(tsr_window, left, 8),
  AT(tsr_window, right, 16),

  SIZE(tsr_problem, 1120),
  AT(tsr_problem, struct_size, 0), AT(tsr_problem, passes, 8), AT(tsr_problem, arrays, 12),
  AT(tsr_problem, index_dtype, 16), AT(tsr_problem, determinism, 20), AT(tsr_problem, batch, 24),
  AT(tsr_problem, heads_q, 32), AT(tsr_problem, heads_kv, 40), AT(tsr_problem, seq_q, 48),
  AT(tsr_problem, seq_k, 56), AT(tsr_problem, total_q, 64), AT(tsr_problem, total_k, 72),
  AT(tsr_problem, dim_qk, 80), AT(tsr_problem, dim_v, 88), AT(tsr_problem, q, 96),
  AT(tsr_problem, k, 144), AT(tsr_problem, v, 192), AT(tsr_problem, o, 240),
  AT(tsr_problem, lse, 288), AT(tsr_problem, max_logit, 336), AT(tsr_problem, scale, 384),
  AT(tsr_problem, softcap, 388), AT(tsr_problem, bias, 392), AT(tsr_problem, alibi, 440),
  AT(tsr_problem, sink, 444), AT(tsr_problem, causal, 448), AT(tsr_problem, reserved0, 452),
  AT(tsr_problem, diagonal, 456), AT(tsr_problem, window, 464), AT(tsr_problem, prefix, 488),
  AT(tsr_problem, mask, 496), AT(tsr_problem, block_mask, 544), AT(tsr_problem, block_q, 592),
  AT(tsr_problem, block_k, 600), AT(tsr_problem, dropout, 608), AT(tsr_problem, reserved1, 612),
  AT(tsr_problem, page_size, 616), AT(tsr_problem, num_pages, 624),
  AT(tsr_problem, max_pages, 632), AT(tsr_problem, page_table_stride, 640),
  AT(tsr_problem, q_scale, 648), AT(tsr_problem, k_scale, 696), AT(tsr_problem, v_scale, 744),
  AT(tsr_problem, scale_rows_q, 792), AT(tsr_problem, scale_rows_k, 800),
  AT(tsr_problem, dout, 808), AT(tsr_problem, dlse, 856), AT(tsr_problem, dq, 904),
  AT(tsr_problem, dk, 952), AT(tsr_problem, dv, 1000), AT(tsr_problem, dbias, 1048),
  AT(tsr_problem, dsink, 1096), AT(tsr_problem, accumulate, 1100), AT(tsr_problem, backend, 1104),
  AT(tsr_problem, kernel, 1112),

  SIZE(tsr_plan_info, 72),
  AT(tsr_plan_info, struct_size, 0), AT(tsr_plan_info, backend, 8), AT(tsr_plan_info, kernel, 16),
  AT(tsr_plan_info, tile_q, 24), AT(tsr_plan_info, tile_k, 32), AT(tsr_plan_info, flops, 40),
  AT(tsr_plan_info, bytes, 48), AT(tsr_plan_info, seconds, 56), AT(tsr_plan_info, workspace, 64),

  SIZE(tsr_args, 296),
  AT(tsr_args, struct_size, 0), AT(tsr_args, q, 8), AT(tsr_args, k, 16), AT(tsr_args, v, 24),
  AT(tsr_args, bias, 32), AT(tsr_args, mask, 40), AT(tsr_args, block_mask, 48),
  AT(tsr_args, alibi, 56), AT(tsr_args, sink, 64), AT(tsr_args, q_scale, 72),
  AT(tsr_args, k_scale, 80), AT(tsr_args, v_scale, 88), AT(tsr_args, cu_q, 96),
  AT(tsr_args, cu_k, 104), AT(tsr_args, used_q, 112), AT(tsr_args, used_k, 120),
  AT(tsr_args, left_pad_q, 128), AT(tsr_args, left_pad_k, 136), AT(tsr_args, prefix, 144),
  AT(tsr_args, diagonal, 152), AT(tsr_args, page_table, 160), AT(tsr_args, seed, 168),
  AT(tsr_args, offset, 176), AT(tsr_args, rng_state, 184), AT(tsr_args, o, 192),
  AT(tsr_args, lse, 200), AT(tsr_args, max_logit, 208), AT(tsr_args, dout, 216),
  AT(tsr_args, dlse, 224), AT(tsr_args, dq, 232), AT(tsr_args, dk, 240), AT(tsr_args, dv, 248),
  AT(tsr_args, dbias, 256), AT(tsr_args, dsink, 264), AT(tsr_args, workspace, 272),
  AT(tsr_args, workspace_size, 280), AT(tsr_args, stream, 288),

  SIZE(tsr_merge_problem, 240),
  AT(tsr_merge_problem, struct_size, 0), AT(tsr_merge_problem, parts, 8),
  AT(tsr_merge_problem, batch, 16), AT(tsr_merge_problem, heads, 24),
  AT(tsr_merge_problem, seq, 32), AT(tsr_merge_problem, dim_v, 40),
  AT(tsr_merge_problem, o_part, 48), AT(tsr_merge_problem, lse_part, 96),
  AT(tsr_merge_problem, o, 144), AT(tsr_merge_problem, lse, 192),

  SIZE(tsr_dropout_problem, 112),
  AT(tsr_dropout_problem, struct_size, 0), AT(tsr_dropout_problem, batch, 8),
  AT(tsr_dropout_problem, heads, 16), AT(tsr_dropout_problem, seq_q, 24),
  AT(tsr_dropout_problem, seq_k, 32), AT(tsr_dropout_problem, dropout, 40),
  AT(tsr_dropout_problem, reserved, 44), AT(tsr_dropout_problem, seed, 48),
  AT(tsr_dropout_problem, offset, 56), AT(tsr_dropout_problem, mask, 64),

  SIZE(tsr_reason, 256),
  AT(tsr_reason, text, 0),

  SIZE(tsr_resolved, 1152),
  AT(tsr_resolved, p, 0), AT(tsr_resolved, features, 1120), AT(tsr_resolved, group, 1124),
  AT(tsr_resolved, drop_threshold, 1128), AT(tsr_resolved, keep_scale, 1136),
  AT(tsr_resolved, reserved, 1140), AT(tsr_resolved, device, 1144),

  SIZE(tsr_host, 64),
  AT(tsr_host, struct_size, 0), AT(tsr_host, abi, 8), AT(tsr_host, threads, 12),
  AT(tsr_host, runner, 16), AT(tsr_host, cpu_target, 24), AT(tsr_host, context, 32),
  AT(tsr_host, alloc, 40), AT(tsr_host, free, 48), AT(tsr_host, log, 56),

  SIZE(tsr_estimate, 48),
  AT(tsr_estimate, seconds, 0), AT(tsr_estimate, flops, 8), AT(tsr_estimate, bytes, 16),
  AT(tsr_estimate, tile_q, 24), AT(tsr_estimate, tile_k, 32), AT(tsr_estimate, workspace, 40),

  SIZE(tsr_kernel_info, 16),
  AT(tsr_kernel_info, name, 0), AT(tsr_kernel_info, pass, 8),

  SIZE(tsr_backend, 120),
  AT(tsr_backend, struct_size, 0), AT(tsr_backend, abi, 8), AT(tsr_backend, name, 16),
  AT(tsr_backend, device_kind, 24), AT(tsr_backend, named_only, 28), AT(tsr_backend, probe, 32),
  AT(tsr_backend, close, 40), AT(tsr_backend, device_count, 48), AT(tsr_backend, device_info, 56),
  AT(tsr_backend, kernel_info, 64), AT(tsr_backend, supports, 72),
  AT(tsr_backend, plan_create, 80), AT(tsr_backend, plan_destroy, 88), AT(tsr_backend, run, 96),
  AT(tsr_backend, merge, 104), AT(tsr_backend, dropout_mask, 112),

  SIZE(tsr_status, 4),
  VALUE(TSR_STATUS_SUCCESS, 0), VALUE(TSR_STATUS_INVALID_ARGUMENT, 1),
  VALUE(TSR_STATUS_NOT_SUPPORTED, 2), VALUE(TSR_STATUS_OUT_OF_MEMORY, 3),
  VALUE(TSR_STATUS_DEVICE_ERROR, 4), VALUE(TSR_STATUS_NOT_FOUND, 5),
  VALUE(TSR_STATUS_ABI_MISMATCH, 6), VALUE(TSR_STATUS_INTERNAL, 7),

  SIZE(tsr_dtype, 4),
  VALUE(TSR_DTYPE_NONE, 0), VALUE(TSR_DTYPE_F32, 1), VALUE(TSR_DTYPE_F16, 2),
  VALUE(TSR_DTYPE_BF16, 3), VALUE(TSR_DTYPE_F64, 4), VALUE(TSR_DTYPE_F8_E4M3, 5),
  VALUE(TSR_DTYPE_F8_E5M2, 6), VALUE(TSR_DTYPE_I8, 7), VALUE(TSR_DTYPE_U8, 16),
  VALUE(TSR_DTYPE_BIT, 17), VALUE(TSR_DTYPE_I32, 32), VALUE(TSR_DTYPE_I64, 33),

  SIZE(tsr_causal, 4),
  VALUE(TSR_CAUSAL_NONE, 0), VALUE(TSR_CAUSAL_TOP_LEFT, 1), VALUE(TSR_CAUSAL_BOTTOM_RIGHT, 2),
  VALUE(TSR_CAUSAL_EXPLICIT, 3),

  SIZE(tsr_device_kind, 4),
  VALUE(TSR_DEVICE_HOST, 0), VALUE(TSR_DEVICE_CUDA, 1), VALUE(TSR_DEVICE_HIP, 2),

  SIZE(tsr_log_level, 4),
  VALUE(TSR_LOG_ERROR, 1), VALUE(TSR_LOG_INFO, 2), VALUE(TSR_LOG_PLAN, 3),

  SIZE(tsr_order, 4),
  VALUE(TSR_ORDER_BHSD, 0), VALUE(TSR_ORDER_BSHD, 1), VALUE(TSR_ORDER_STRIDED, 2),

  SIZE(tsr_array, 4),
  VALUE(TSR_ARRAY_CU_Q, 1), VALUE(TSR_ARRAY_CU_K, 2), VALUE(TSR_ARRAY_USED_Q, 4),
  VALUE(TSR_ARRAY_USED_K, 8), VALUE(TSR_ARRAY_LEFT_PAD_Q, 16), VALUE(TSR_ARRAY_LEFT_PAD_K, 32),
  VALUE(TSR_ARRAY_PREFIX, 64), VALUE(TSR_ARRAY_DIAGONAL, 128),

  SIZE(tsr_window_kind, 4),
  VALUE(TSR_WINDOW_NONE, 0), VALUE(TSR_WINDOW_TOP_LEFT, 1), VALUE(TSR_WINDOW_BOTTOM_RIGHT, 2),
  VALUE(TSR_WINDOW_EXPLICIT, 3),

  SIZE(tsr_alibi, 4),
  VALUE(TSR_ALIBI_NONE, 0), VALUE(TSR_ALIBI_PER_HEAD, 1), VALUE(TSR_ALIBI_PER_BATCH_HEAD, 2),

  SIZE(tsr_determinism, 4),
  VALUE(TSR_DETERMINISM_DEFAULT, 0), VALUE(TSR_DETERMINISM_DETERMINISTIC, 1),
  VALUE(TSR_DETERMINISM_BATCH_INVARIANT, 2),

  SIZE(tsr_pass, 4),
  VALUE(TSR_PASS_FORWARD, 1), VALUE(TSR_PASS_BACKWARD, 2),

  SIZE(tsr_accumulate, 4),
  VALUE(TSR_ACCUMULATE_DQ, 1), VALUE(TSR_ACCUMULATE_DK, 2), VALUE(TSR_ACCUMULATE_DV, 4),
  VALUE(TSR_ACCUMULATE_DBIAS, 8), VALUE(TSR_ACCUMULATE_DSINK, 16),

  SIZE(tsr_feature, 4),
  VALUE(TSR_FEATURE_CAUSAL, 1), VALUE(TSR_FEATURE_WINDOW, 2), VALUE(TSR_FEATURE_PREFIX, 4),
  VALUE(TSR_FEATURE_MASK, 8), VALUE(TSR_FEATURE_BLOCK_MASK, 16), VALUE(TSR_FEATURE_BIAS, 32),
  VALUE(TSR_FEATURE_ALIBI, 64), VALUE(TSR_FEATURE_SOFTCAP, 128), VALUE(TSR_FEATURE_SINK, 256),
  VALUE(TSR_FEATURE_DROPOUT, 512), VALUE(TSR_FEATURE_GROUPED_HEADS, 1024),
  VALUE(TSR_FEATURE_PACKED, 2048), VALUE(TSR_FEATURE_USED_LENGTHS, 4096),
  VALUE(TSR_FEATURE_PAGED, 8192), VALUE(TSR_FEATURE_MAX_LOGIT, 16384),
  VALUE(TSR_FEATURE_SCALES, 32768), VALUE(TSR_FEATURE_DLSE, 65536),
  VALUE(TSR_FEATURE_DBIAS, 131072), VALUE(TSR_FEATURE_DSINK, 262144),
  VALUE(TSR_FEATURE_ACCUMULATE, 524288), VALUE(TSR_FEATURE_DETERMINISTIC, 1048576),
  VALUE(TSR_FEATURE_BATCH_INVARIANT, 2097152), VALUE(TSR_FEATURE_STRIDED_LAST, 4194304),
};

int main(void) {
  int failed = 0;
  if (sizeof(void *) != 8 || sizeof(long) != 8) {
    printf("the pinned numbers are those of LP64 targets; this is another one\n");
    return 1;
  }
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    if (rows[i].found == rows[i].pinned) continue;
    printf("%s is %lld, pinned is %lld\n", rows[i].what, rows[i].found, rows[i].pinned);
    failed = 1;
  }
  if (!failed) printf("%zu sizes, offsets and values are as pinned\n", sizeof(rows) / sizeof(rows[0]));
  return failed;
}
