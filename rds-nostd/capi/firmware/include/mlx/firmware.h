/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 1.2 and RDS in firmware: the functions that the library needs from the machine, and how to
 * open and close the HCA.
 *
 * Link with libmlx_firmware.a; nothing else is needed. One call at a time: the library refuses
 * calls from an interrupt, or from a function below, while another call is in progress. mlx_open
 * and mlx_close return -EBUSY then. Other calls fail as if no HCA were open (DAT_INVALID_HANDLE,
 * and DAT_PROVIDER_NOT_FOUND of dat_ia_openv; -EBADF, and -ENODEV of rds_socket and rds_poll; 0 of
 * mlx_poll). */
#ifndef MLX_FIRMWARE_H
#define MLX_FIRMWARE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The machine. The first argument of each function is `context`. Functions from `say` on may be
 * null. */
struct mlx_platform {
    void *context;

    /* Returns BAR0 of the HCA, mapped uncached permanently, and stores its length, a power of two.
     * Memory decoding is on. Bus mastering is on, too, unless `bus_master` or both config functions
     * are present: then the library switches it. */
    void *(*bar)(void *context, size_t *length);

    /* Returns `length` bytes of memory for exclusive and permanent use, in whole pages, or null.
     * The HCA accesses it coherently at the stored device address, which is not 0. If
     * `device_address` is null, the HCA does not access it. The library requests both kinds when
     * the HCA is first opened, for each new dma_length, and again if the returned memory was
     * unusable. Memory that the HCA may still access after a failure is not reused before a reset:
     * see mlx_open. */
    void *(*memory)(void *context, size_t length, uint64_t *device_address);

    /* Returns the time in nanoseconds, of a monotonic clock. */
    uint64_t (*now)(void *context);

    /* Waits for an interrupt of the HCA (MSI-X vector 0), or until `until` of that clock;
     * UINT64_MAX for no limit. `until` is in the future at the time of the call, and may be past
     * when the clock is read again. May return early, and must do so if an interrupt has arrived
     * since the last call. A machine without interrupts returns immediately. */
    void (*idle)(void *context, uint64_t until);

    /* Reports a fatal error of the library. Must disable bus mastering, and must not return. */
    void (*panic)(void *context, const char *text, size_t length);

    /* Logs a text: the reason why the HCA does not open or close. */
    void (*say)(void *context, const char *text, size_t length);

    /* Maps `length` bytes of the firmware's memory at `address` for coherent access by the HCA.
     * Returns 0 and stores the device address, which equals `address` in its lowest 12 bits. The
     * HCA only reads the memory unless `writable`. Without this function no memory of the firmware
     * can be registered. */
    int (*map)(void *context, void *address, size_t length, int writable, uint64_t *device_address);

    /* Undoes one `map`. */
    void (*unmap)(void *context, uint64_t device_address, size_t length);

    /* Access a dword of the HCA's configuration space, at a multiple of 4 below 256. With both
     * functions the library itself resets the function and switches bus mastering, unless `reset`
     * and `bus_master` do. A read returns all ones if the function does not respond. */
    uint32_t (*read_config)(void *context, unsigned offset);
    void (*write_config)(void *context, unsigned offset, uint32_t value);

    /* Resets the function (Function Level Reset) and waits until it responds. Returns 0 if it was
     * reset. Its configuration space is as before, BARs and MSI-X capability included, but bus
     * mastering is off. Requires `bus_master` or both config functions. */
    int (*reset)(void *context);

    /* Switches bus mastering on (1) or off (0). Returns 0 if the function reads back so. A firmware
     * that uses interrupts must rewrite the MSI-X table whenever it is switched on, because a reset
     * clears the table. */
    int (*bus_master)(void *context, int on);

    /* For DMA that is not coherent, both or neither, for memory that `map` was called with. The
     * first cleans the caches of `length` bytes at `address` after the processor wrote them. The
     * second invalidates them before the processor reads what the HCA wrote. */
    void (*sync_for_device)(void *context, void *address, size_t length);
    void (*sync_for_cpu)(void *context, void *address, size_t length);
};

/* Choices of the firmware. */
struct mlx_config {
    /* The port's IPv4 address, in network byte order. */
    uint32_t address;
    /* Random bits. */
    uint64_t seed[2];
    /* Increases from boot to boot: the wall clock in nanoseconds, or 0 without a clock. With 0, a
     * peer from an earlier boot may discard this boot's first messages as duplicates. */
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

/* Brings the HCA up and waits until its port is reachable by address. DAT names it "ib0" (RDMA-CM's
 * framing) and "ib0-dat" (DAT's own), on Ethernet also "roce0" and "roce0-dat". Returns 0, -ENODEV (19), -ENETDOWN (100), -ENOMEM (12),
 * -EINVAL (22), or -EBUSY (16) if it is open. Returns -ENOTRECOVERABLE (131) if an earlier mlx_open
 * or mlx_close failed, the HCA may still access its memory, and it cannot be reset. `say` receives
 * the reason. Both structures may be freed afterwards.
 *
 * An HCA that another driver left running, e.g. before a watchdog's reset, is reset before bus
 * mastering is enabled. After a failure it is reset, too, and bus mastering is off. */
int mlx_open(const struct mlx_platform *platform, const struct mlx_config *config);

/* Makes progress, and calls agents of CNOs that are due. Blocking calls do the same. A firmware
 * with other work calls this in between: ten times a second, or at each interrupt of the HCA.
 * Returns the time of the next call, by the platform's clock; 0 for immediately.
 *
 * mlx_poll also recovers an HCA after a failure, which can take seconds. Sockets survive, and
 * messages wait meanwhile. Recovery destroys every object of DAT: a program that receives
 * DAT_ASYNC_ERROR_IA_CATASTROPHIC closes its IAs and opens them again. Recovery starts when they
 * are closed, or a second after the failure. */
uint64_t mlx_poll(void);

/* Disconnects peers, discards unacknowledged messages, destroys all objects, and returns the HCA to
 * its original state. Returns 0, -EBUSY, or -ENODEV if the HCA did not respond and was reset or has
 * lost bus mastering. Returns -ENOTRECOVERABLE if neither was possible: the HCA may still write to
 * memory, including that of `map`. Old handles remain invalid when the HCA is opened again. Bus
 * mastering is off afterwards if the library can switch it; otherwise the firmware must clear it.
 */
int mlx_close(void);

#ifdef __cplusplus
}
#endif

#endif /* MLX_FIRMWARE_H */
