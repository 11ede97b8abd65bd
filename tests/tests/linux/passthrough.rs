//! HCAs that a guest hands on, through an IOMMU: to a process of its own, to a guest of its own.

use crate::c_programs::{self, Here};
use crate::guests::{remove_drivers, run};
use mlx5_prm::status::HealthSyndrome;
use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use rdma_lab::unikernel::{self, Running};
use runner::install::DAT;
use runner::kernel_image;
use runner::linux::{judge, program};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Binds the HCA to `vfio-pci`; leaves its address in `$B`.
const HAND_OVER: &str = "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\n\
     modprobe vfio-pci && modprobe vfio_iommu_type1 && echo vfio-pci > /sys/bus/pci/devices/$B/driver_override && \
     echo $B > /sys/bus/pci/drivers_probe && ls -l /sys/bus/pci/devices/$B/iommu_group";
/// Gives it back to the guest's own driver.
const TAKE_BACK: &str = "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\n\
     echo > /sys/bus/pci/devices/$B/driver_override && echo $B > /sys/bus/pci/drivers/vfio-pci/unbind && \
     hcas-up";

/// The demonstration's other node, in a process of this machine. Killed when dropped.
struct Process(Child);

impl Process {
    fn start(program: &Path, socket: &Path) -> Self {
        let child = Command::new(program)
            .arg("--socket")
            .arg(socket)
            .args(["--ip", "10.0.0.1", "--peer", "10.0.0.2", "--count", "64"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.expect("the example starts"))
    }

    fn finish(mut self) -> String {
        let read = |from: Option<&mut dyn std::io::Read>| {
            let mut text = String::new();
            from.expect("piped").read_to_string(&mut text).expect("text");
            text
        };
        let mut text = read(self.0.stdout.as_mut().map(|pipe| pipe as &mut dyn std::io::Read));
        text += &read(self.0.stderr.as_mut().map(|pipe| pipe as &mut dyn std::io::Read));
        assert!(self.0.wait().expect("ends").success(), "{text}");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn exchange(lab: &mut Lab, demo: &Path) {
    run(lab, 0, "dmesg -c > /dev/null");
    println!("{}", run(lab, 0, HAND_OVER).text());
    let script = "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\nselftest --vfio $B --iommu group";
    let own = run(lab, 0, script).text();
    assert_eq!(own.lines().last(), Some("@done verified=true"), "{own}");
    // In CI the recovery below and the C program move data through VFIO.
    if !runner::conditions::long() {
        return;
    }
    let socket = lab.socket(lab.first_spare()).expect("a socket").to_path_buf();
    let other = Process::start(demo, &socket);
    // By the group: Debian's kernels have no iommufd.
    let script = "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\n\
         demo --vfio $B --iommu group --ip 10.0.0.2 --peer 10.0.0.1 --count 64";
    let own = run(lab, 0, script).text();
    let other = other.finish();
    for text in [&own, &other] {
        assert_eq!(text.lines().last(), Some("verified"), "{text}");
    }
    println!("{own}");
}

/// Waits until the guest's HCA has sent so many more packets.
fn traffic(lab: &Lab, packets: u64) {
    let sent =
        || lab.served().with_world(|world, _| world.nodes()[0].hca.counters().packets_sent).expect("served");
    let until = sent() + packets;
    let end = Instant::now() + Duration::from_secs(120);
    while sent() < until {
        assert!(Instant::now() < end, "no pings");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The HCA fails under a process that has it by VFIO, is reset by somebody else, and falls off the bus: the process recovers it each time,
/// and no ping stays without an answer.
fn recover(lab: &mut Lab, rds_ping: &Path) {
    const COUNT: u32 = 1500;
    let socket = lab.socket(lab.first_spare()).expect("a socket").to_path_buf();
    let mut other =
        Here::start(Command::new(rds_ping).arg("--socket").arg(socket).args(["--ip", "10.0.0.1"]));
    other.expect("ready");
    let script = format!(
        "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\n\
         rds_ping --vfio $B --iommu group --ip 10.0.0.2 --peer 10.0.0.1 --count {COUNT} --grace 0 > /tmp/pings 2>&1 < /dev/null &"
    );
    run(lab, 0, &script);
    let recovered = |lab: &mut Lab, times: u32| {
        let script = format!(
            "i=0\nuntil [ $(grep -c '^recovered' /tmp/pings) -ge {times} ] || [ $i = 1200 ]; do i=$((i+1)); sleep 0.1; done\n\
             cat /tmp/pings; [ $i -lt 1200 ]"
        );
        run(lab, 0, &script);
    };
    let hca = |lab: &Lab, change: fn(&mut hca_model::Hca)| {
        lab.served().with_world(move |world, _| change(world.hca_mut(0).expect("served"))).expect("served");
    };
    traffic(lab, 50);
    hca(lab, |hca| hca.fail(HealthSyndrome(1)));
    recovered(lab, 1);
    traffic(lab, 50);
    run(lab, 0, "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\necho 1 > /sys/bus/pci/devices/$B/reset");
    recovered(lab, 2);
    traffic(lab, 50);
    hca(lab, hca_model::Hca::kill);
    std::thread::sleep(Duration::from_secs(3));
    hca(lab, hca_model::Hca::revive);
    recovered(lab, 3);
    let text = run(lab, 0, "while pidof rds_ping > /dev/null; do sleep 0.1; done; cat /tmp/pings").text();
    println!("{text}");
    assert!(text.contains(&format!("{COUNT} sent, {COUNT} answered")), "{text}");
}

/// Profiles of HCAs that are handed on. The Ethernet port is tested with `--long`.
fn cards() -> &'static [&'static str] {
    if runner::conditions::long() { &["cx-5", "cx-5-en"] } else { &["cx-5"] }
}

/// A guest that can hand its HCA on, and an HCA of the same kind for its peer.
fn with_iommu(kind: impl Into<Kind>, card: &str) -> Options {
    let card = || card.parse().expect("a card");
    let kind = Kind { iommu: true, hcas: vec![card()], ..kind.into() };
    Options { spare: 1, spare_kind: card(), ..Options::new(kind, 1) }
}

/// Each kernel with each kind of HCA.
fn kernels_and_cards() -> impl Iterator<Item = (Kernel, &'static str)> {
    judge::kernels().iter().flat_map(|kernel| cards().iter().map(|card| (*kernel, *card)))
}

#[test]
fn a_process_in_a_guest_drives_an_hca_by_vfio_and_gives_it_back() {
    for (kernel, card) in kernels_and_cards() {
        let demo = program::example("platform-linux", "demo").expect("it compiles");
        let selftest = program::example("platform-linux", "selftest").expect("it compiles");
        let rds_ping = program::example("platform-linux", "rds_ping").expect("it compiles");
        let binaries = vec![demo.clone(), selftest, rds_ping.clone()];
        let options = Options { binaries, ..with_iommu(kernel, card) };
        let Some(mut lab) = judge::lab_or_skip(options) else { return };
        println!("Linux {}, {card}", lab.version());
        exchange(&mut lab, &demo);
        recover(&mut lab, &rds_ping);
        run(&mut lab, 0, TAKE_BACK);
        remove_drivers(&mut lab);
        lab.stop().expect("it powers off");
    }
}

#[test]
fn a_c_program_of_dat_in_a_guest_drives_an_hca_by_vfio() {
    const COUNT: u32 = 200;
    let program = c_programs::compile(&DAT, &[], "dat-nostd/capi/examples/dat_ping.c");
    for (kernel, card) in kernels_and_cards() {
        let options = Options { binaries: vec![program.clone()], ..with_iommu(kernel, card) };
        let Some(mut lab) = judge::lab_or_skip(options) else { return };
        run(&mut lab, 0, HAND_OVER);
        // The same program, by the emulated HCA's socket, answers.
        let socket = lab.socket(lab.first_spare()).expect("a socket");
        let mut answering = Here::start(Command::new(&program).arg(format!("{}@10.0.0.1", socket.display())));
        answering.expect("ready");
        let script = format!(
            "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\nDAT_DBG_TYPE=1 dat_ping $B@10.0.0.2 10.0.0.1 {COUNT} 2>&1"
        );
        let text = run(&mut lab, 0, &script).text();
        assert!(text.contains(&format!("{COUNT} messages and answers")), "{text}");
        answering.expect(&format!("{COUNT} messages answered"));
        answering.finish();
        run(&mut lab, 0, TAKE_BACK);
        remove_drivers(&mut lab);
        lab.stop().expect("it powers off");
    }
}

/// The unikernel in a QEMU in the guest, on the guest's HCA; `words` are its command line. `rdma-lab` refuses an HCA whose
/// interface is up.
fn nested(lab: &mut Lab, words: &str) -> Vec<String> {
    let script = format!(
        "B=$(lspci -Dn -d 15b3: | cut -d' ' -f1)\n\
         for net in $(ls /sys/bus/pci/devices/$B/net 2> /dev/null); do ip link set $net down; done\n\
         rdma-lab boot --vfio $B --image /usr/bin/kernel --limit 1400 {words} 2>&1"
    );
    let answer = lab.run(0, &script, NESTED).expect("the script ends");
    assert!(answer.success(), "{words} ended with {}:\n{}", answer.status, answer.text());
    answer.lines
}

/// The longest that an emulated machine within an emulated machine may take: many times what a quiet
/// machine needs, because a busy one once exceeded 500 s.
const NESTED: Duration = Duration::from_secs(1500);

/// The unikernel's end, killed when it does not come.
fn finish(mut running: Running) -> Vec<String> {
    let (deadline, mut lines) = (Instant::now() + NESTED, Vec::new());
    while let Some(line) = running.next_line(deadline).expect("it ends") {
        lines.push(format!("{line:?}"));
    }
    let verdict = running.finish(None).expect("it ends").verdict;
    assert_eq!(verdict, unikernel::Verdict::Success, "{}", lines.join("\n"));
    lines
}

#[test]
fn a_unikernel_in_a_guests_own_guest_has_the_hca_and_gives_it_back() {
    let image = kernel_image::build().expect("it compiles");
    let rdma_lab = program::binary("rdma-lab", "rdma-lab").expect("it compiles");
    for card in cards() {
        let binaries = vec![rdma_lab.clone(), image.clone()];
        nested_unikernel(card, &image, binaries);
    }
}

fn nested_unikernel(card: &str, image: &Path, binaries: Vec<PathBuf>) {
    let kind = Kind { memory_mib: Some(3072), ..judge::host().expect("names").into() };
    let options = Options { binaries, ..with_iommu(kind, card) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}, {card}", lab.version());
    run(&mut lab, 0, "hcas-up && dmesg -c > /dev/null");
    let lines = nested(&mut lab, "app=selftest");
    println!("{}", lines.join("\n"));
    for wanted in ["driver mlx5_core", "@done verified=true", "is given back to mlx5_core"] {
        assert!(lines.iter().any(|line| line.contains(wanted)), "no `{wanted}`:\n{}", lines.join("\n"));
    }
    run(&mut lab, 0, "hcas-up");
    if runner::conditions::long() {
        // The server is up long before the nested client, which may take minutes to boot.
        let demo = |role, own, peer| {
            format!("app=demo role={role} ip=10.0.0.{own} peer=10.0.0.{peer} divide=400 seed=5 wait=1400")
        };
        let mut other = unikernel::Options::new(&demo("server", 1, 2));
        other.hcas = vec![lab.socket(lab.first_spare()).expect("a socket").to_path_buf()];
        let other = unikernel::start(lab.qemu(), image, &other).expect("QEMU starts");
        println!("{}", nested(&mut lab, &demo("client", 2, 1)).join("\n"));
        println!("{}", finish(other).join("\n"));
    }
    run(&mut lab, 0, "hcas-up && dmesg");
    remove_drivers(&mut lab);
    lab.stop().expect("it powers off");
}
