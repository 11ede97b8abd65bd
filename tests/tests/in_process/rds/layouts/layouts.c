/* Prints control messages and structures as the C compiler lays them out, one a line: a name and the bytes. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef SYSTEM_LINUX
#include <sys/socket.h>
#include <netinet/in.h>
#include <net/if.h>
#include <linux/rds.h>
#define LOOPBACK_NAME "lo"
#define LEVEL SOL_RDS
#define FAMILY AF_INET
#else
/* As rds(3SOCKET) writes the structures; illumos differs in the token alone. Its header of control messages on x86. */
#ifdef SYSTEM_ILLUMOS
typedef uint64_t token_t;
#else
typedef uint32_t token_t;
#endif
typedef uint64_t rds_rdma_cookie_t;
struct rds_iovec { uint64_t addr, bytes; };
struct rds_get_mr_args { struct rds_iovec vec; uint64_t cookie_addr, flags; };
struct rds_free_mr_args { rds_rdma_cookie_t cookie; uint64_t flags; };
struct rds_rdma_args {
	rds_rdma_cookie_t cookie;
	struct rds_iovec remote_vec;
	uint64_t local_vec_addr, nr_local, flags;
	token_t user_token;
};
struct rds_rdma_notify { token_t user_token; int32_t status; };
#define RDS_CMSG_RDMA_ARGS 1
#define RDS_CMSG_RDMA_DEST 2
#define RDS_CMSG_RDMA_MAP 3
#define RDS_CMSG_RDMA_STATUS 4
#define RDS_CMSG_CONG_UPDATE 5
#define RDS_RDMA_DROPPED 3
#define LEVEL 272
#define FAMILY 30
struct cmsghdr { uint32_t cmsg_len; int cmsg_level, cmsg_type; };
#define CMSG_LEN(len) (sizeof(struct cmsghdr) + (len))
#define CMSG_SPACE(len) ((CMSG_LEN(len) + 3) & ~(size_t)3)
#define CMSG_DATA(cmsg) ((unsigned char *)((cmsg) + 1))
struct in_addr { uint32_t s_addr; };
struct sockaddr_in { uint16_t sin_family, sin_port; struct in_addr sin_addr; char sin_zero[8]; };
/* As net/if.h of illumos. */
#define LOOPBACK_NAME "lo0"
#define IFF_UP 0x1
#define IFF_LOOPBACK 0x8
#define IFF_RUNNING 0x40
#define IFF_MULTICAST 0x800
struct ifreq {
	char ifr_name[16];
	union {
		struct sockaddr_in ifr_addr;
		short ifr_flags;
		uint32_t ifr_mtu;
	};
};
#endif

static void print(const char *name, const void *bytes, size_t len)
{
	const unsigned char *byte = bytes;

	printf("%s ", name);
	while (len--)
		printf("%02x", *byte++);
	printf("\n");
}

static void message(const char *name, int type, const void *payload, size_t len)
{
	_Alignas(8) unsigned char buffer[256] = { 0 };
	struct cmsghdr *cmsg = (struct cmsghdr *)buffer;

	cmsg->cmsg_len = CMSG_LEN(len);
	cmsg->cmsg_level = LEVEL;
	cmsg->cmsg_type = type;
	memcpy(CMSG_DATA(cmsg), payload, len);
	print(name, buffer, CMSG_SPACE(len));
}

int main(void)
{
	struct rds_rdma_args args;
	struct rds_get_mr_args map;
	struct rds_free_mr_args release;
	struct rds_rdma_notify notify;
	struct sockaddr_in address;
	struct ifreq interface;
	uint64_t word = 0x0000010000000300;

	memset(&args, 0, sizeof(args));
	args.cookie = word;
	args.remote_vec.addr = 0x1111;
	args.remote_vec.bytes = 0x2222;
	args.local_vec_addr = 0x3333;
	args.nr_local = 0x44;
	args.flags = 0x21;
	args.user_token = 0x55667788;
	message("args", RDS_CMSG_RDMA_ARGS, &args, sizeof(args));
	message("dest", RDS_CMSG_RDMA_DEST, &word, sizeof(word));
	memset(&map, 0, sizeof(map));
	map.vec.addr = 0x11;
	map.vec.bytes = 0x22;
	map.cookie_addr = 0x33;
	map.flags = 0x0c;
	message("map", RDS_CMSG_RDMA_MAP, &map, sizeof(map));
	print("get_mr", &map, sizeof(map));
	memset(&notify, 0, sizeof(notify));
	notify.user_token = 0x55667788;
	notify.status = RDS_RDMA_DROPPED;
	message("status", RDS_CMSG_RDMA_STATUS, &notify, sizeof(notify));
	message("cong_update", RDS_CMSG_CONG_UPDATE, &word, sizeof(word));
	memset(&release, 0, sizeof(release));
	release.cookie = word;
	release.flags = 0x04;
	print("free_mr", &release, sizeof(release));
	memset(&address, 0, sizeof(address));
	address.sin_family = FAMILY;
	address.sin_port = (uint16_t)(0x34 << 8 | 0x12);
	address.sin_addr.s_addr = 0x0403020a;
	print("address", &address, sizeof(address));
	memset(&interface, 0, sizeof(interface));
	strcpy(interface.ifr_name, "ib0");
	memcpy(&interface.ifr_addr, &address, sizeof(address));
	((struct sockaddr_in *)&interface.ifr_addr)->sin_port = 0;
	print("ifreq_address", &interface, sizeof(interface));
	memset(&interface, 0, sizeof(interface));
	strcpy(interface.ifr_name, LOOPBACK_NAME);
	interface.ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING | IFF_MULTICAST;
	print("ifreq_flags", &interface, sizeof(interface));
	memset(&interface, 0, sizeof(interface));
	strcpy(interface.ifr_name, "ib0");
	interface.ifr_mtu = 2044;
	print("ifreq_mtu", &interface, sizeof(interface));
#ifdef SYSTEM_LINUX
	struct rds_atomic_args atomic;
	struct rds_cmsg_rx_trace trace;
	struct rds_rx_trace_so option;
	struct rds_zcopy_cookies cookies;
	struct rds_get_mr_for_dest_args for_dest;
	struct sockaddr_in6 v6;
	uint32_t zcopy = 77;

	memset(&atomic, 0, sizeof(atomic));
	atomic.cookie = word;
	atomic.local_addr = 0x1111;
	atomic.remote_addr = 0x2222;
	atomic.flags = 0x60;
	atomic.user_token = 0x99;
	atomic.fadd.add = 0x31;
	message("fadd", RDS_CMSG_ATOMIC_FADD, &atomic, sizeof(atomic));
	atomic.cswp.compare = 0x41;
	atomic.cswp.swap = 0x42;
	message("cswp", RDS_CMSG_ATOMIC_CSWP, &atomic, sizeof(atomic));
	atomic.m_fadd.add = 0x51;
	atomic.m_fadd.nocarry_mask = 0x52;
	message("masked_fadd", RDS_CMSG_MASKED_ATOMIC_FADD, &atomic, sizeof(atomic));
	atomic.m_cswp.compare = 0x61;
	atomic.m_cswp.swap = 0x62;
	atomic.m_cswp.compare_mask = 0x63;
	atomic.m_cswp.swap_mask = 0x64;
	message("masked_cswp", RDS_CMSG_MASKED_ATOMIC_CSWP, &atomic, sizeof(atomic));
	memset(&option, 0, sizeof(option));
	option.rx_traces = 2;
	option.rx_trace_pos[0] = RDS_MSG_RX_DGRAM_DELIVERED;
	option.rx_trace_pos[1] = RDS_MSG_RX_DGRAM_REASSEMBLE;
	print("rx_trace_option", &option, sizeof(option));
	memset(&trace, 0, sizeof(trace));
	trace.rx_traces = 2;
	trace.rx_trace_pos[0] = RDS_MSG_RX_DGRAM_DELIVERED;
	trace.rx_trace_pos[1] = RDS_MSG_RX_DGRAM_REASSEMBLE;
	trace.rx_trace[0] = 0x1002;
	trace.rx_trace[1] = 0x1001;
	message("rxpath_latency", RDS_CMSG_RXPATH_LATENCY, &trace, sizeof(trace));
	message("zcopy_cookie", RDS_CMSG_ZCOPY_COOKIE, &zcopy, sizeof(zcopy));
	memset(&cookies, 0, sizeof(cookies));
	cookies.num = 2;
	cookies.cookies[0] = 5;
	cookies.cookies[1] = 6;
	message("zcopy_completion", RDS_CMSG_ZCOPY_COMPLETION, &cookies, sizeof(cookies));
	memset(&for_dest, 0, sizeof(for_dest));
	memcpy(&for_dest.dest_addr, &address, sizeof(address));
	for_dest.vec = map.vec;
	for_dest.cookie_addr = map.cookie_addr;
	for_dest.flags = map.flags;
	print("get_mr_for_dest", &for_dest, sizeof(for_dest));
	memset(&v6, 0, sizeof(v6));
	v6.sin6_family = AF_INET6;
	v6.sin6_port = htons(0x1234);
	v6.sin6_addr.s6_addr[0] = 0xfe;
	v6.sin6_addr.s6_addr[1] = 0x80;
	v6.sin6_addr.s6_addr[15] = 5;
	v6.sin6_scope_id = 7;
	print("address6", &v6, sizeof(v6));
#endif
	return 0;
}
