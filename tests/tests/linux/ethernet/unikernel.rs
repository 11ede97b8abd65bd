//! RoCE v2 between a unikernel and Linux, by `mlx5_ib` and by `rdma_rxe`: reliable connections without a connection manager, IP,
//! RDMA-CM, RDS.

use crate::guests::run_everywhere;
use crate::ip::{unikernel_serves_ip, unikernel_serves_rping, unikernel_uses_ip, unikernel_uses_rping};
use crate::node::{Node, Pair, number, word};
use crate::rds::stress::{self, Side};
use crate::unikernel::exchange;
use rdma_lab::linux::{Kernel, Kind, Lab, Options, Recipe};
use runner::linux::judge;
use runner::{conditions, kernel_image, setup};
use std::path::PathBuf;

/// Guests: one with an HCA, one with rxe.
const MLX5: usize = 0;
const RXE: usize = 1;

/// Jumbo frames at both ends: a connection whose MTU exceeds the other end's is refused.
const JUMBO: &str = "mtu=9000";

/// IPv4.
const fn ipv4(guest: usize) -> Pair {
    let linux = if guest == MLX5 { "172.16.0.1" } else { "172.16.0.2" };
    Pair { guest, linux, unikernel: "172.16.0.9", words: JUMBO }
}

/// IPv4 on VLAN 5.
const fn vlan(guest: usize) -> Pair {
    let linux = if guest == MLX5 { "172.17.0.1" } else { "172.17.0.2" };
    Pair { guest, linux, unikernel: "172.17.0.9", words: "mtu=9000 vlan=5" }
}

/// IPv6, by the addresses of `ethernet-up`.
const fn ipv6(guest: usize) -> Pair {
    let linux = if guest == MLX5 { "fd78:0::1" } else { "fd78:0::2" };
    Pair { guest, linux, unikernel: "fd78:0::9", words: JUMBO }
}

/// The guests, and room for a unikernel with its images.
struct Ground {
    lab: Lab,
    image: PathBuf,
    /// Image of the test partners.
    workload: PathBuf,
    pair: Pair,
}

impl Ground {
    fn new(kernel: Kernel) -> Option<Self> {
        let card = || "cx-5-en".parse().expect("a card");
        let recipe = |kernel| Recipe::new(kernel).with_modules(["8021q"]).expect("a name");
        let mlx5 = Kind { hcas: vec![card()], ..recipe(kernel).into() };
        let rxe = Kind { hcas: Vec::new(), rxe: true, ..recipe(Kernel::V6_1).into() };
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest");
        let programs = ["rds.c", "rds_load.c", "verbs.c"].map(|name| folder.join(name)).into();
        let binaries = stress::program().into_iter().collect();
        let spare_kind = card();
        let capture = std::env::var_os("ROCE_CAPTURE").map(PathBuf::from);
        let options =
            Options { spare: 1, spare_kind, programs, binaries, capture, ..Options::of(vec![mlx5, rxe]) };
        let mut lab = judge::lab_or_skip(options)?;
        println!("Linux {}", lab.version());
        setup::rust_targets().expect("the bare-metal target");
        let image = kernel_image::build().expect("the image builds");
        let workload = kernel_image::build_workload().expect("the partners' image builds");
        run_everywhere(
            &mut lab,
            "dmesg -c > /dev/null; hcas-up && modprobe rdma_ucm && modprobe rds_rdma || exit 1\n\
             mkfifo /tmp/hold; ip link set lo up\n\
             device=$(ls -d /sys/class/infiniband/*)\n\
             device=$(cat $device/ports/1/gid_attrs/ndevs/0)\n\
             ip address add 172.16.0.$((GUEST + 1))/24 dev $device && modprobe 8021q || exit 1\n\
             ip link add link $device name vlan5 type vlan id 5 && ip link set vlan5 up || exit 1\n\
             ip address add 172.17.0.$((GUEST + 1))/24 dev vlan5",
        );
        Some(Self { lab, image, workload, pair: ipv4(MLX5) })
    }

    /// Connections whose ends exchange their addresses by hand, in both roles.
    fn verbs(&mut self, guest: usize) {
        for role in ["server", "client"] {
            exchange(&mut self.lab, &self.workload, guest, role);
        }
    }

    fn ip(&mut self, pair: &Pair) {
        unikernel_serves_ip(&mut self.lab, &self.image, pair, 100, 1 << 20);
        unikernel_uses_ip(&mut self.lab, &self.image, pair);
    }

    fn rping(&mut self, pair: &Pair, kills: usize) {
        unikernel_uses_rping(&mut self.lab, &self.image, pair);
        unikernel_serves_rping(&mut self.lab, &self.image, pair, kills);
    }

    /// `ib_write_bw -R` writes to the unikernel.
    fn perftest(&mut self, pair: &Pair) {
        let mut server = pair.start(&self.lab, &self.workload, "program=perftest");
        server.expect("@perftest listening ");
        let unikernel = pair.unikernel;
        pair.run(&mut self.lab, &format!("timeout 120 ib_write_bw -R -n 200 -s 65536 -F {unikernel}"));
        let line = server.expect("@perftest messages=");
        // The client fills its buffer with random bytes.
        assert!(number(&line, "filled") > 60_000, "{line}");
        server.finish();
        println!("ib_write_bw -R: {line}");
    }

    /// `rds_rdma` pings the unikernel, and the other way.
    fn rds_pings(&mut self, pair: Pair) {
        const PINGS: u32 = 100;
        let all = |line: &str| {
            let count = PINGS.to_string();
            assert_eq!((word(line, "sent"), word(line, "received")), (count.clone(), count), "{line}");
        };
        self.pair = pair;
        let [linux, unikernel] = self.addresses();
        let mut node = Side::unikernel(self, "app=rds mode=echo");
        node.expect("@rds listening ");
        let answer = self.linux(&format!("rds ping {linux} {unikernel} {PINGS} 1"));
        all(answer.iter().find(|line| line.starts_with("@rds ping ")).expect("a result"));
        node.quit();
        node.finish();
        let mut node =
            Side::unikernel(self, &format!("app=rds mode=ping to={linux} count={PINGS} interval=1"));
        all(&node.expect("@rds ping "));
        node.finish();
    }
}

impl Side for Ground {
    /// Linux sends connection requests to a unikernel that is off, because its ARP entry remains, and repeats each after 4.3 s
    /// (`CMA_CM_RESPONSE_TIMEOUT`). In between, requests of the unikernel are rejected.
    const SECONDS: u32 = 6;

    fn addresses(&self) -> [&'static str; 2] {
        [self.pair.linux, self.pair.unikernel]
    }

    fn unikernel(&self, words: &str) -> Node {
        self.pair.start(&self.lab, &self.image, words)
    }

    fn linux(&mut self, script: &str) -> Vec<String> {
        self.pair.run(&mut self.lab, script).lines
    }
}

/// All of it with a guest.
fn everything(ground: &mut Ground, guest: usize) {
    ground.verbs(guest);
    ground.ip(&ipv4(guest));
    for pair in [ipv4(guest), ipv6(guest)] {
        ground.rping(&pair, 2);
    }
    ground.ip(&vlan(guest));
    ground.rping(&vlan(guest), 0);
    for pair in [ipv4(guest), vlan(guest)] {
        ground.perftest(&pair);
    }
    // The last addresses are also those of the loads, which speak IPv4.
    for pair in [vlan(guest), ipv6(guest), ipv4(guest)] {
        ground.rds_pings(pair);
    }
    stress::loads(ground);
    if stress::program().is_some() {
        stress::rds_stress(ground);
    }
}

#[test]
fn linux_and_a_unikernel_meet_on_ethernet() {
    let Some(mut ground) = Ground::new(Kernel::V6_1) else { return };
    ground.perftest(&ipv4(MLX5));
    ground.verbs(MLX5);
    ground.ip(&ipv4(MLX5));
    ground.rping(&ipv4(MLX5), 0);
    ground.rds_pings(ipv4(MLX5));
    ground.lab.stop().expect("they power off");
}

fn with_both_guests(kernel: Kernel) {
    if !conditions::long() {
        return;
    }
    let Some(mut ground) = Ground::new(kernel) else { return };
    for guest in [MLX5, RXE] {
        println!("{}", if guest == MLX5 { "mlx5_ib" } else { "rdma_rxe" });
        everything(&mut ground, guest);
    }
    ground.lab.stop().expect("they power off");
}

#[test]
fn the_latest_kernel_and_a_unikernel_do_everything_on_ethernet() {
    with_both_guests(Kernel::Backports);
}

#[test]
fn linux_6_1_and_a_unikernel_do_everything_on_ethernet() {
    with_both_guests(Kernel::V6_1);
}
