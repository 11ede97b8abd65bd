/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 1.2 and RDS in firmware: what the library needs of the machine, and how the HCA comes and goes.
 *
 * Link with libmlx_firmware.a; nothing else is needed. One call at a time: who calls from an interrupt, or from one of the functions below,
 * while another call is under way, is refused: by mlx_open and mlx_close with -EBUSY, by the others as if no HCA were open
 * (DAT_INVALID_HANDLE, and DAT_PROVIDER_NOT_FOUND of dat_ia_openv; -EBADF, and -ENODEV of rds_socket and rds_poll; 0 of mlx_poll). */
#ifndef MLX_FIRMWARE_H
#define MLX_FIRMWARE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The machine. Each function gets `context` first. Those from `say` on may be null. */
struct mlx_platform {
    void *context;

    /* Returns BAR0 of the HCA, mapped uncached for good, and stores its length, a power of two. Memory decoding is on. Bus mastering is on
     * too, unless `bus_master` or both config functions are there: then the library switches it. */
    void *(*bar)(void *context, size_t *length);

    /* Memory that nobody else uses, for good: `length` bytes, whole pages. The HCA reaches it, coherently, at the address that is stored,
     * which is not 0; where `device_address` is null it has no business there. Null if there is none. Asked for both when the HCA is
     * opened the first time, with another dma_length, and again if what it gave last was of no use. Memory that the HCA may still access
     * after a failure is not used again before a reset: see mlx_open. */
    void *(*memory)(void *context, size_t length, uint64_t *device_address);

    /* Nanoseconds, of a clock that never goes back. */
    uint64_t (*now)(void *context);

    /* Waits for an interrupt of the HCA's (MSI-X vector 0), or until `until` of that clock; UINT64_MAX is for ever. `until` is still to
     * come when this is called, and may be past when the clock is asked again. May come back early; has to do so if an interrupt has come
     * since the last time. A machine without interrupts comes back at once. */
    void (*idle)(void *context, uint64_t until);

    /* The library has found a mistake of its own, and says which. Bus mastering is to be switched off. Must not come back. */
    void (*panic)(void *context, const char *text, size_t length);

    /* Something for people to read: why the HCA does not open or close. */
    void (*say)(void *context, const char *text, size_t length);

    /* Lets the HCA reach memory of the firmware's own, `length` bytes at `address`, coherently: 0, and stores the device address, which agrees
     * with `address` in its lowest 12 bits. The HCA only reads it unless `writable`. Without it only such memory of `memory` can be registered as is the library's own: none. */
    int (*map)(void *context, void *address, size_t length, int writable, uint64_t *device_address);

    /* Ends that. */
    void (*unmap)(void *context, uint64_t device_address, size_t length);

    /* A dword of the HCA's configuration space, at a multiple of 4 below 256. If both functions are
     * given, the library itself resets the function and switches bus mastering, unless `reset` and
     * `bus_master` do. A read of a function that does not answer returns all ones. */
    uint32_t (*read_config)(void *context, unsigned offset);
    void (*write_config)(void *context, unsigned offset, uint32_t value);

    /* Resets the function (Function Level Reset) and waits until it answers again. Returns 0 if it was reset. Its configuration space is as
     * before then, BARs and MSI-X capability included, but bus mastering is off. Needs `bus_master` or both config functions. */
    int (*reset)(void *context);

    /* Switches bus mastering on (1) or off (0). Returns 0 if the function reads back so. A firmware that uses interrupts writes the MSI-X
     * table again when it is switched on, because a reset clears the table. */
    int (*bus_master)(void *context, int on);

    /* For DMA that is not coherent, both or neither, for memory that `map` was called with. The
     * first cleans the caches of `length` bytes at `address` after the processor wrote them. The
     * second invalidates them before the processor reads what the HCA wrote. */
    void (*sync_for_device)(void *context, void *address, size_t length);
    void (*sync_for_cpu)(void *context, void *address, size_t length);
};

/* What the firmware chooses. */
struct mlx_config {
    /* The port's IPv4 address, in the order of the network. */
    uint32_t address;
    /* Random bits. */
    uint64_t seed[2];
    /* Grows from boot to boot: the wall clock in nanoseconds. 0 where there is none: a peer that knew an earlier boot may then take the
     * first messages of this one for old ones. */
    uint64_t boot;
    /* Bytes that `memory` is asked for that the HCA reaches, whole pages; 0 for 256 MiB. The length
     * has no upper limit. The HCA's own firmware takes most of it: the emulated HCA half a MiB, a
     * ConnectX-4 50 MiB, newer cards 200 MiB and more. Too little is -ENOMEM, and `say` gets both
     * numbers. The library also requests memory of its own. Its size is a quarter of `dma_length`,
     * or a sixteenth but at least 16 MiB, whichever is less, and 1 KiB for each MiB, rounded up to
     * a power of two. */
    size_t dma_length;
    /* 0: each peer has its own protection zone, and RDS_GET_MR, which names no peer, fails with
     * EOPNOTSUPP. 1: all peers share one zone, and may use each key that they learn or guess. */
    uint32_t shared_keys;
};

/* Brings the HCA up and waits until its port can be reached by address. DAT has it as "ib0"
 * (RDMA-CM's framing) and "ib0-dat" (DAT's own). Returns 0, -ENODEV (19), -ENETDOWN (100), -ENOMEM
 * (12), -EINVAL (22), or -EBUSY (16): one is open. Returns -ENOTRECOVERABLE (131) if an earlier
 * mlx_open or mlx_close failed, the HCA may still access the memory that it had, and cannot be
 * reset. `say` says why. Both structures may go afterwards.
 *
 * An HCA that others left at work, before a watchdog's reset say, is reset before it may master the
 * bus. After a failure it is reset, too, and bus mastering is off. */
int mlx_open(const struct mlx_platform *platform, const struct mlx_config *config);

/* Moves everything on, and calls agents of CNOs that are due. Calls that wait do the same; a
 * firmware that has other things to do calls this in between: ten times a second, or whenever the
 * HCA interrupts. Returns when it wants to be called again, by the platform's clock; 0 for at once.
 *
 * mlx_poll also recovers an HCA that has failed, which can take seconds. Sockets stay, and what was
 * sent waits meanwhile. Every object of DAT is gone afterwards: a program that finds
 * DAT_ASYNC_ERROR_IA_CATASTROPHIC closes its IAs and opens them again. Recovery begins when they
 * are closed, or a second after the failure. */
uint64_t mlx_poll(void);

/* Closes everything: peers are notified, what they have not acknowledged is lost, and the HCA is
 * handed back as it was found. Returns 0, -EBUSY, or -ENODEV if the HCA did not answer and was
 * reset or has lost bus mastering. Returns -ENOTRECOVERABLE if neither was possible: the HCA may
 * still write to memory, that of `map` included. Handles of before stay invalid when it is opened
 * again. Bus mastering is off afterwards if the library can switch it; otherwise the firmware has
 * to. */
int mlx_close(void);

#ifdef __cplusplus
}
#endif

#endif /* MLX_FIRMWARE_H */
