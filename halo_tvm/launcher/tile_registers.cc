// AMX's registers are there for a process that has asked for them, before its first thread uses them.
//
// This is linked into every library whose code has such instructions. Where the system refuses them, so does
// `targets/_host.py` in Python: it counts them among the host's features only if they are given.
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

__attribute__((constructor)) void ask() { syscall(SYS_arch_prctl, kRequestPermission, kTileData); }

}  // namespace
#endif
