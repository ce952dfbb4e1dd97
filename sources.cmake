# kernels
# runtime
# proofs
set(HPMOE_BINDINGS backend_ascend/native_module.cc)
target_sources(hpmoe_host PRIVATE backend_ascend/kernels/host/crc32.cc)
