/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Firmware without libc that finds an HCA on PCI, queries it by DAT, pings an RDS peer twice, and exits.
 *
 * Its address is 10.0.0.2. The peer is 10.0.0.1, port 4000 ("app=rds mode=echo" of the unikernel).
 * The log goes to COM1. QEMU exits by its isa-debug-exit: 0x10 for success. */
#include <dat/udat.h>
#include <mlx/firmware.h>
#include <rds/rds.h>

#define ADDRESS(a, b, c, d) ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
#define PORT(port) ((uint16_t)((port) >> 8 | (port) << 8))

enum { SUCCESS = 0x10, FAILED = 0x12, PANIC = 0x13, NO_DEVICE = 0x15 };

static void out8(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static void out32(uint16_t port, uint32_t value) { __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port)); }
static uint8_t in8(uint16_t port) { uint8_t value; __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static uint32_t in32(uint16_t port) { uint32_t value; __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port)); return value; }

/* COM1, and the exit of the machine. */

static void say(void *context, const char *text, size_t length)
{
    (void)context;
    while (length--) {
        while (!(in8(0x3f8 + 5) & 0x20))
            ;
        out8(0x3f8, (uint8_t)*text++);
    }
    out8(0x3f8, '\n');
}

static void print(const char *text)
{
    size_t length = 0;

    while (text[length])
        length++;
    say(NULL, text, length);
}

static __attribute__((noreturn)) void end(int code)
{
    out32(0xf4, (uint32_t)code);
    for (;;) __asm__ volatile("hlt");
}

/* The HCA's configuration space, by the I/O ports of every PC. */

static uint32_t function;

static uint32_t read_config(void *context, unsigned offset)
{
    (void)context;
    out32(0xcf8, 0x80000000u | function << 8 | offset);
    return in32(0xcfc);
}

static void write_config(void *context, unsigned offset, uint32_t value)
{
    (void)context;
    out32(0xcf8, 0x80000000u | function << 8 | offset);
    out32(0xcfc, value);
}

static int find_hca(void)
{
    /* Mellanox, an InfiniBand controller. */
    for (function = 0; function < 0x10000; function += 8)
        if ((read_config(NULL, 0) & 0xffff) == 0x15b3 && read_config(NULL, 8) >> 16 == 0x0207)
            return 1;
    return 0;
}

/* Bus mastering (bit 2), memory decoding (bit 1). */
static void set_command(uint32_t bits) { write_config(NULL, 4, (read_config(NULL, 4) & 0xfff8) | bits); }

/* The platform functions that the library needs. */

static void *bar(void *context, size_t *length)
{
    uint64_t base = (uint64_t)read_config(context, 0x14) << 32 | (read_config(context, 0x10) & ~15u);

    set_command(0);
    write_config(context, 0x10, ~0u);
    *length = ~(read_config(context, 0x10) & ~15u) + 1u;
    write_config(context, 0x10, (uint32_t)base);
    set_command(2);
    return (void *)base;
}

static void *memory(void *context, size_t length, uint64_t *device_address)
{
    extern char image_end[];
    static char *next = image_end;
    char *here = next;

    (void)context;
    next += length;
    if (device_address)
        *device_address = (uint64_t)here;
    return here;
}

static uint64_t ticks(void) { uint32_t low, high; __asm__ volatile("rdtsc" : "=a"(low), "=d"(high)); return (uint64_t)high << 32 | low; }
static uint64_t ticks_each_ms;

/* The timer's channel 2 counts 10 ms at 1.193182 MHz. */
static void measure_clock(void)
{
    uint64_t before;

    out8(0x61, (in8(0x61) & 0xfc) | 1);
    out8(0x43, 0xb0);
    out8(0x42, 11932 & 0xff);
    out8(0x42, 11932 >> 8);
    before = ticks();
    while (!(in8(0x61) & 0x20))
        ;
    ticks_each_ms = (ticks() - before) / 10;
}

static uint64_t now(void *context)
{
    uint64_t t = ticks();

    (void)context;
    return t / ticks_each_ms * 1000000 + t % ticks_each_ms * 1000000 / ticks_each_ms;
}

/* Without interrupts: returns immediately. */
static void idle(void *context, uint64_t until) { (void)context; (void)until; __asm__ volatile("pause"); }

static void panic(void *context, const char *text, size_t length)
{
    set_command(0);
    say(context, text, length);
    end(PANIC);
}

static void check(int holds, const char *what)
{
    if (!holds) {
        print(what);
        set_command(0);
        end(FAILED);
    }
}

static void ping(void)
{
    struct sockaddr_in own = { AF_INET, 0, { ADDRESS(10, 0, 0, 2) }, { 0 } }, from;
    struct sockaddr_in peer = { AF_INET, PORT(4000), { ADDRESS(10, 0, 0, 1) }, { 0 } };
    static unsigned char sent[10000], received[sizeof sent];
    int fd = rds_socket(AF_RDS, SOCK_SEQPACKET, 0), count;
    struct pollfd readable = { fd, POLLIN, 0 };
    socklen_t length = sizeof from;
    size_t i;

    check(fd >= 0 && rds_bind(fd, (struct sockaddr *)&own, sizeof own) == 0, "error: no socket");
    for (count = 0; count < 100; count++) {
        for (i = 0; i < sizeof sent; i++)
            sent[i] = (unsigned char)(i * 7 + i / 251 + (size_t)count);
        check(rds_sendto(fd, sent, sizeof sent, 0, (struct sockaddr *)&peer, sizeof peer) == sizeof sent, "error: not sent");
        check(rds_poll(&readable, 1, 60000) == 1, "error: no answer");
        check(rds_recvfrom(fd, received, sizeof received, 0, (struct sockaddr *)&from, &length) == sizeof sent, "error: another length");
        for (i = 0; i < sizeof sent && sent[i] == received[i]; i++)
            ;
        check(i == sizeof sent && from.sin_addr.s_addr == peer.sin_addr.s_addr, "error: other data");
    }
    check(rds_close(fd) == 0, "error: no close");
    print("pings answered, every byte right");
}

int main(void)
{
    struct mlx_platform platform = { NULL, bar, memory, now, idle, panic, say, NULL, NULL, read_config, write_config, NULL, NULL, NULL, NULL };
    struct mlx_config config = { ADDRESS(10, 0, 0, 2), { 0, 0 }, 0, 64 << 20, 0 };
    DAT_EVD_HANDLE async;
    static DAT_IA_ATTR attributes;
    DAT_IA_HANDLE ia, old = DAT_HANDLE_NULL;
    int rounds;

    if (!find_hca())
        end(NO_DEVICE);
    measure_clock();
    for (rounds = 2; rounds > 0; rounds--, old = ia) {
        config.seed[0] = config.seed[1] = ticks(), async = DAT_HANDLE_NULL;
        check(mlx_open(&platform, &config) == 0, "error: the HCA does not open");
        check(dat_ia_open("ib0", 8, &async, &ia) == DAT_SUCCESS, "error: no IA");
        check(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attributes, 0, NULL) == DAT_SUCCESS, "error: no attributes");
        check(DAT_GET_TYPE(dat_ia_query(old, NULL, DAT_IA_FIELD_ALL, &attributes, 0, NULL)) == DAT_INVALID_HANDLE, "error: an old handle is good");
        print(attributes.vendor_name);
        ping();
        check(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) == DAT_SUCCESS, "error: the IA does not close");
        check(mlx_close() == 0, "error: the HCA does not close");
    }
    set_command(0);
    end(SUCCESS);
}
