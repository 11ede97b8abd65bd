/*
 * wrong_checksum ADDRESS: sends three UDP datagrams whose checksum is wrong, of 10, 200 and 1400 bytes, as frames of a packet
 * socket. Their IPv4 header is right.
 */
#include <arpa/inet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 9999

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint16_t checksum(const void *data, size_t len)
{
	const uint8_t *bytes = data;
	uint32_t sum = 0;

	for (size_t i = 0; i < len; i += 2)
		sum += bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons(~sum);
}

/* Waits for the ARP entry of `to`. Returns its interface and MAC address. */
static void look_up(const char *to, char *interface, uint8_t *mac)
{
	char line[200], address[20], text[20];

	for (int attempt = 0; attempt < 50; attempt++) {
		FILE *table = fopen("/proc/net/arp", "r");

		if (!table)
			fail("/proc/net/arp");
		while (fgets(line, sizeof(line), table)) {
			unsigned flags;

			if (sscanf(line, "%19s %*s %x %19s %*s %15s", address, &flags, text, interface) == 4 &&
			    !strcmp(address, to) && flags & 2) {
				for (int i = 0; i < 6; i++)
					mac[i] = strtol(text + 3 * i, NULL, 16);
				fclose(table);
				return;
			}
		}
		fclose(table);
		usleep(100000);
	}
	fprintf(stderr, "%s has no MAC address\n", to);
	exit(1);
}

int main(int argc, char **argv)
{
	static const size_t lengths[] = {10, 200, 1400};
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)}, from;
	socklen_t size = sizeof(from);
	struct sockaddr_ll link = {.sll_family = AF_PACKET, .sll_halen = 6};
	struct ifreq request = {0};
	uint8_t frame[1500], *at = frame;

	if (argc != 2 || !inet_pton(AF_INET, argv[1], &to.sin_addr)) {
		fprintf(stderr, "usage: wrong_checksum ADDRESS\n");
		return 2;
	}
	int udp = socket(AF_INET, SOCK_DGRAM, 0);

	if (udp < 0 || connect(udp, (struct sockaddr *)&to, sizeof(to)) ||
	    getsockname(udp, (struct sockaddr *)&from, &size) || send(udp, "x", 1, 0) != 1)
		fail("UDP");
	look_up(argv[1], request.ifr_name, link.sll_addr);
	int raw = socket(AF_PACKET, SOCK_RAW, htons(ETHERTYPE_IP));

	if (raw < 0 || ioctl(raw, SIOCGIFINDEX, &request))
		fail("packet socket");
	link.sll_ifindex = request.ifr_ifindex;
	memcpy(at, link.sll_addr, 6);
	if (ioctl(raw, SIOCGIFHWADDR, &request))
		fail("MAC address");
	memcpy(at + 6, request.ifr_hwaddr.sa_data, 6);
	at[12] = ETHERTYPE_IP >> 8;
	at[13] = ETHERTYPE_IP & 0xff;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		size_t len = sizeof(struct iphdr) + sizeof(struct udphdr) + lengths[i];
		struct iphdr ip = {.version = 4, .ihl = 5, .tot_len = htons(len), .ttl = 64, .protocol = IPPROTO_UDP,
				   .saddr = from.sin_addr.s_addr, .daddr = to.sin_addr.s_addr};
		/* All payload is zero: the right checksum is another one in each of the lengths. */
		struct udphdr header = {.source = htons(PORT), .dest = htons(PORT), .len = htons(len - sizeof(ip)),
					.check = htons(0x1234)};

		ip.check = checksum(&ip, sizeof(ip));
		memset(at + 14, 0, len);
		memcpy(at + 14, &ip, sizeof(ip));
		memcpy(at + 14 + sizeof(ip), &header, sizeof(header));
		if (sendto(raw, frame, 14 + len, 0, (struct sockaddr *)&link, sizeof(link)) != (ssize_t)(14 + len))
			fail("send");
	}
	return 0;
}
