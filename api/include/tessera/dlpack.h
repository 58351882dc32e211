// SPDX-License-Identifier: Apache-2.0
//
// Bridge between DLPack tensors and Tessera's, without copying: include <dlpack/dlpack.h> (0.6 or
// later) before this header. Inline functions only, so that the library itself needs no DLPack. Axes
// of a DLTensor with fewer than four dimensions get leading axes of length 1.
#ifndef TESSERA_DLPACK_H_
#define TESSERA_DLPACK_H_

#ifndef DLPACK_VERSION
#ifndef DLPACK_MAJOR_VERSION
#error "include <dlpack/dlpack.h> before <tessera/dlpack.h>"
#endif
#endif

#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tessera's dtype of a DLPack dtype; NONE where there is none (lanes other than 1 included). */
static inline tsr_dtype tsr_dtype_from_dlpack(DLDataType type) {
  if (type.lanes != 1) return TSR_DTYPE_NONE;
  switch (type.code) {
    case kDLFloat:
      return type.bits == 32   ? TSR_DTYPE_F32
             : type.bits == 16 ? TSR_DTYPE_F16
             : type.bits == 64 ? TSR_DTYPE_F64
                               : TSR_DTYPE_NONE;
    case kDLBfloat:
      return type.bits == 16 ? TSR_DTYPE_BF16 : TSR_DTYPE_NONE;
    case kDLInt:
      return type.bits == 8    ? TSR_DTYPE_I8
             : type.bits == 32 ? TSR_DTYPE_I32
             : type.bits == 64 ? TSR_DTYPE_I64
                               : TSR_DTYPE_NONE;
    case kDLUInt:
      return type.bits == 8 ? TSR_DTYPE_U8 : TSR_DTYPE_NONE;
    default:
      return TSR_DTYPE_NONE;
  }
}

/* DLPack's dtype of a Tessera dtype; lanes = 0 where there is none (packed bits, fp8). */
static inline DLDataType tsr_dtype_to_dlpack(tsr_dtype dtype) {
  DLDataType type;
  type.code = kDLFloat;
  type.bits = 32;
  type.lanes = 1;
  switch (dtype) {
    case TSR_DTYPE_F32: break;
    case TSR_DTYPE_F16: type.bits = 16; break;
    case TSR_DTYPE_F64: type.bits = 64; break;
    case TSR_DTYPE_BF16: type.code = kDLBfloat; type.bits = 16; break;
    case TSR_DTYPE_I8: type.code = kDLInt; type.bits = 8; break;
    case TSR_DTYPE_I32: type.code = kDLInt; break;
    case TSR_DTYPE_I64: type.code = kDLInt; type.bits = 64; break;
    case TSR_DTYPE_U8: type.code = kDLUInt; type.bits = 8; break;
    default: type.bits = 0; type.lanes = 0; break;
  }
  return type;
}

/* Views a DLTensor as a tsr_tensor.
 *
 * in      1 to 4 dimensions; strides NULL means dense row-major, as DLPack defines.
 * out     receives the view. Ownership: memory stays in's owner's; out is valid as long as it is.
 * device  NULL, or receives where the memory lives.
 * Returns: SUCCESS; NOT_SUPPORTED (dtype, number of dimensions, negative stride or device type that
 * Tessera has no word for). Threads: any. Since: 0.1. */
static inline tsr_status tsr_tensor_from_dlpack(const DLTensor *in, tsr_tensor *out,
                                                tsr_device *device) {
  tsr_device where = {TSR_DEVICE_HOST, 0};
  int64_t dense = 1;
  int axis;
  if (!in || !out) return TSR_STATUS_INVALID_ARGUMENT;
  if (in->ndim < 1 || in->ndim > 4) return TSR_STATUS_NOT_SUPPORTED;
  switch (in->device.device_type) {
    case kDLCPU: break;
    case kDLCUDAHost: break;
    case kDLCUDA: where.kind = TSR_DEVICE_CUDA; where.index = in->device.device_id; break;
    case kDLROCM: where.kind = TSR_DEVICE_HIP; where.index = in->device.device_id; break;
    default: return TSR_STATUS_NOT_SUPPORTED;
  }
  out->dtype = tsr_dtype_from_dlpack(in->dtype);
  if (out->dtype == TSR_DTYPE_NONE) return TSR_STATUS_NOT_SUPPORTED;
  out->data = in->data ? (char *)in->data + in->byte_offset : NULL;
  out->reserved = 0;
  for (axis = 3; axis >= 0; --axis) {
    const int from = axis - (4 - in->ndim);
    const int64_t extent = from >= 0 ? in->shape[from] : 1;
    const int64_t stride = from >= 0 && in->strides ? in->strides[from] : dense;
    if (stride < 0) return TSR_STATUS_NOT_SUPPORTED;
    out->shape[axis] = extent;
    out->stride[axis] = stride;
    dense *= extent;
  }
  if (device) *device = where;
  return TSR_STATUS_SUCCESS;
}

/* Views a tsr_tensor as a DLTensor of four dimensions. shape and strides of out point into in, which
 * must outlive it. Returns: SUCCESS; NOT_SUPPORTED (a dtype DLPack has no word for). */
static inline tsr_status tsr_tensor_to_dlpack(tsr_tensor *in, tsr_device device, DLTensor *out) {
  if (!in || !out) return TSR_STATUS_INVALID_ARGUMENT;
  out->dtype = tsr_dtype_to_dlpack(in->dtype);
  if (!out->dtype.lanes) return TSR_STATUS_NOT_SUPPORTED;
  out->data = in->data;
  out->device.device_type = device.kind == TSR_DEVICE_CUDA  ? kDLCUDA
                            : device.kind == TSR_DEVICE_HIP ? kDLROCM
                                                            : kDLCPU;
  out->device.device_id = device.index;
  out->ndim = 4;
  out->shape = in->shape;
  out->strides = in->stride;
  out->byte_offset = 0;
  return TSR_STATUS_SUCCESS;
}

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_DLPACK_H_
