// The names of the CUDA module's own kernels, in place of their machine code, for the GPU that is this machine.
extern "C" {
extern const unsigned char partita_kernels_attention[] = "stand-in kernels: attention";
extern const unsigned char partita_kernels_epilogue[] = "stand-in kernels: epilogue";
extern const unsigned char partita_kernels_flash[] = "stand-in kernels: flash";
extern const unsigned char partita_kernels_grouped[] = "stand-in kernels: grouped";
extern const unsigned char partita_kernels_indexing[] = "stand-in kernels: indexing";
extern const unsigned char partita_kernels_pool[] = "stand-in kernels: pool";
extern const unsigned char partita_kernels_scan[] = "stand-in kernels: scan";
}
