// Serves boot images to rdmaboot.efi, by RDS and RDMA. On Linux's rds_rdma: cc -O2 -o rdmaserve rdmaserve.c
// With librds: cc -O2 -include rds/sockets.h -o rdmaserve rdmaserve.c -lrds
//
//   rdmaserve [-n COUNT] OWN-ADDRESS FILE...     ends after COUNT complete transfers, or by a signal
//
// Images have the names of their files, without directories. A client that names none gets the first one.
//
// The client requests parts of the image. Each reply offers the part, which the client reads by RDMA. The messages are
// those of kernel/apps/src/boot/message.rs, with big-endian numbers.

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rds.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Older headers of libc lack them.
#ifndef AF_RDS
#define AF_RDS 21
#endif
#ifndef SOL_RDS
#define SOL_RDS 276
#endif

enum {
    PORT = 4011,
    VERSION = 1,
    REQUEST = 1,
    REPLY = 2,
    READY = 0,
    NO_IMAGE = 1,
    OUT_OF_RANGE = 2,
    BUSY = 3,
    MAX_PART = 1 << 20,
    MAX_NAME = 64,
    CLIENTS = 16,
    // A client that reads for longer than this has died. Linux reconnects to it only after its part was released.
    READING_S = 20,
};

struct header {
    char magic[4];
    uint16_t version, kind;
    uint64_t tag;
} __attribute__((packed));

struct request {
    struct header header;
    uint64_t offset;
    uint32_t len, reserved;
    char name[MAX_NAME]; // Without a zero at its end if it is the longest.
} __attribute__((packed));

struct reply {
    struct header header;
    uint64_t size, offset, cookie;
    uint32_t status, checksum, len, reserved;
} __attribute__((packed));

_Static_assert(sizeof(struct request) == 96 && sizeof(struct reply) == 56, "as in message.rs");

// Parts that clients may read: one for each client.
struct offer {
    struct sockaddr_in client;
    uint64_t cookie;
    time_t since;
};

struct image {
    const char *name;
    uint8_t *bytes;
    uint64_t size;
    uint32_t checksum;
};

static struct offer offers[CLIENTS];
static struct image *images;
static int count_of_images;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static time_t seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

// CRC-32 of IEEE 802.3.
static uint32_t crc32_of(const uint8_t *bytes, uint64_t len) {
    uint32_t table[256], crc = ~0u;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320 : 0);
    }
    while (len--) crc = crc >> 8 ^ table[(uint8_t)(crc ^ *bytes++)];
    return ~crc;
}

static struct image load(const char *path) {
    const char *slash = strrchr(path, '/');
    struct image image = {.name = slash ? slash + 1 : path};
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0) fail(path);
    uint64_t size = image.size = (uint64_t)status.st_size;
    // Regions address whole pages.
    if (size == 0 || posix_memalign((void **)&image.bytes, 4096, (size_t)size) != 0) fail("memory for the image");
    for (uint64_t at = 0; at < size;) {
        ssize_t got = read(file, image.bytes + at, size - at);
        if (got <= 0) fail(path);
        at += (uint64_t)got;
    }
    close(file);
    image.checksum = crc32_of(image.bytes, size);
    return image;
}

static const struct image *find(const char name[MAX_NAME]) {
    for (const struct image *image = images; image < images + count_of_images; image++)
        if (name[0] == 0 || strncmp(image->name, name, MAX_NAME) == 0) return image;
    return NULL;
}

static void release(int fd, struct offer *offer) {
    struct rds_free_mr_args args = {.cookie = offer->cookie};
    // A region is gone already if its connection broke.
    if (offer->cookie != 0) (void)setsockopt(fd, SOL_RDS, RDS_FREE_MR, &args, sizeof args);
    offer->cookie = 0;
}

// The client's place, or that of the client that was served longest ago.
static struct offer *place_of(int fd, const struct sockaddr_in *client) {
    struct offer *place = &offers[0];
    for (struct offer *offer = offers; offer < offers + CLIENTS; offer++) {
        if (memcmp(&offer->client, client, sizeof *client) == 0) {
            place = offer;
            break;
        }
        if (offer->since < place->since) place = offer;
    }
    release(fd, place);
    place->client = *client;
    place->since = seconds();
    return place;
}

// Sends a reply. With bytes in `part` it offers them: the message's control data contains the cookie, because Linux maps memory
// for a peer only with a message. Returns 0, or -1 if there is no room.
static int send_reply(int fd, struct offer *place, struct reply *reply, struct rds_iovec part) {
    struct rds_get_mr_args args = {.vec = part, .cookie_addr = (uintptr_t)&place->cookie};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof args)];
    } control = {.bytes = {0}};
    struct iovec payload = {reply, sizeof *reply};
    struct msghdr message = {
        .msg_name = &place->client,
        .msg_namelen = sizeof place->client,
        .msg_iov = &payload,
        .msg_iovlen = 1,
    };
    if (part.bytes > 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *map = CMSG_FIRSTHDR(&message);
        map->cmsg_level = SOL_RDS;
        map->cmsg_type = RDS_CMSG_RDMA_MAP;
        map->cmsg_len = CMSG_LEN(sizeof args);
        memcpy(CMSG_DATA(map), &args, sizeof args);
    }
    return sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? -1 : 0;
}

static int is_request(const struct request *request, ssize_t len) {
    return len == sizeof *request && memcmp(request->header.magic, "RBOT", 4) == 0 &&
           be16toh(request->header.version) == VERSION && be16toh(request->header.kind) == REQUEST &&
           be32toh(request->len) <= MAX_PART;
}

// Replies to a request. Returns 1 if it was for the last part.
static int serve(int fd, const struct request *request, const struct sockaddr_in *client) {
    uint64_t offset = be64toh(request->offset);
    uint32_t len = be32toh(request->len);
    struct offer *place = place_of(fd, client);
    static const struct image none;
    const struct image *found = find(request->name), *image = found ? found : &none;
    int inside = found && offset <= image->size && len <= image->size - offset;
    struct reply reply = {
        .header = {"RBOT", htobe16(VERSION), htobe16(REPLY), request->header.tag},
        .size = htobe64(image->size),
        .offset = request->offset,
        .status = htobe32(inside ? READY : found ? OUT_OF_RANGE : NO_IMAGE),
        .checksum = htobe32(image->checksum),
        .len = inside ? request->len : 0,
    };
    struct rds_iovec part = {inside ? (uintptr_t)image->bytes + offset : 0, inside ? len : 0};
    if (send_reply(fd, place, &reply, part) != 0) {
        perror("reply");
        place->cookie = 0;
        reply.status = htobe32(BUSY);
        reply.len = 0;
        // A reply that is lost is requested again.
        (void)send_reply(fd, place, &reply, (struct rds_iovec){0, 0});
        return 0;
    }
    return len > 0 && inside && offset + len == image->size;
}

int main(int count, char **words) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    long left = -1;
    int option;
    while ((option = getopt(count, words, "n:")) == 'n') left = strtol(optarg, NULL, 10);
    if (option != -1 || count - optind < 2 || inet_pton(AF_INET, words[optind], &own.sin_addr) != 1) {
        printf("usage: rdmaserve [-n COUNT] OWN-ADDRESS FILE...\n");
        return 2;
    }
    count_of_images = count - optind - 1;
    images = calloc((size_t)count_of_images, sizeof *images);
    if (images == NULL) fail("memory for the images");
    for (int i = 0; i < count_of_images; i++) images[i] = load(words[optind + 1 + i]);
    int fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    if (fd < 0) fail("socket");
    if (bind(fd, (struct sockaddr *)&own, sizeof own) != 0) fail("bind");
    for (const struct image *image = images; image < images + count_of_images; image++)
        printf("@rdmaserve image=%s bytes=%lu checksum=0x%08x\n", image->name, (unsigned long)image->size, image->checksum);
    printf("@rdmaserve listening port=%d\n", PORT);
    fflush(stdout);
    time_t ending = 0;
    while (left != 0 || seconds() < ending) {
        struct pollfd readable = {fd, POLLIN, 0};
        int ready = poll(&readable, 1, 1000);
        if (ready < 0 && errno != EINTR) fail("poll");
        for (struct offer *offer = offers; offer < offers + CLIENTS; offer++)
            if (offer->cookie != 0 && seconds() - offer->since > READING_S) release(fd, offer);
        struct request request;
        struct sockaddr_in client;
        socklen_t size_of_client = sizeof client;
        memset(&client, 0, sizeof client);
        ssize_t len =
            recvfrom(fd, &request, sizeof request, MSG_DONTWAIT, (struct sockaddr *)&client, &size_of_client);
        if (len < 0 || !is_request(&request, len)) continue;
        if (serve(fd, &request, &client)) {
            printf("@rdmaserve complete client=%s\n", inet_ntoa(client.sin_addr));
            fflush(stdout);
            // The last part is read after the reply.
            if (left > 0) left--;
            ending = seconds() + 5;
        }
    }
    for (struct offer *offer = offers; offer < offers + CLIENTS; offer++) release(fd, offer);
    close(fd);
    printf("@done\n");
    return 0;
}
