//! Unmodified Linux loads `mlx5_core` and `mlx5_ib` on emulated HCAs, lets them idle, resets and rebinds one, removes the
//! drivers, ten times over (6.1, which all other tests run, three times but for `MLX5_TESTS_LONG=1`), without a complaint on either side;
//! and is killed.

use crate::guests::{census, hcas_are_content, kernels_are_content, nothing_is_left, remove_drivers, run};
use harness::seeds;
use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::linux::judge;
use std::time::Instant;

/// HCAs of the guest.
const HCAS: usize = 2;
/// How often the drivers are loaded and removed, and how often if that is not looked at alone.
const ROUNDS: usize = 10;
const FEW_ROUNDS: usize = 3;
/// Health is polled every two seconds.
const TEN_POLLS: &str = "sleep 21";
/// Function-level reset under the kernel's hands, and binding again.
const RESET: &str = r#"
name=$(basename "$(ls -d /sys/bus/pci/drivers/mlx5_core/0000:* | head -n 1)")
echo "$name" > /sys/bus/pci/drivers/mlx5_core/unbind
[ "$(cat /sys/bus/pci/devices/$name/reset_method)" = flr ] || exit 2
echo 1 > /sys/bus/pci/devices/$name/reset || exit 3
echo "$name" > /sys/bus/pci/drivers/mlx5_core/bind || exit 4
ports-active
"#;

/// The drivers hold at least command, asynchronous, pages and completion EQ, and QP0 and QP1, on each HCA.
fn drivers_hold_objects(lab: &Lab) {
    for (node, census) in census(lab).iter().enumerate() {
        let enough = census.eqs >= 4 && census.cqs >= 1 && census.qps >= 2 && census.mkeys >= 1;
        assert!(enough, "HCA {node}: {census}");
    }
}

fn probe(kernel: Kernel, rounds: usize) {
    let began = Instant::now();
    let kind = Kind { hcas: vec![Default::default(); HCAS], ..kernel.into() };
    let Some(mut lab) = judge::lab_or_skip(Options::new(kind, 1)) else { return };
    println!("Linux {} after {:.1} s", lab.version(), began.elapsed().as_secs_f64());
    run(&mut lab, 0, "dmesg -c > /dev/null");
    let mut probes = 0;
    for round in 1..=rounds {
        let loaded = run(&mut lab, 0, "modprobe mlx5_ib && ports-active");
        probes += HCAS;
        drivers_hold_objects(&lab);
        if round == 1 && rounds == ROUNDS {
            run(&mut lab, 0, TEN_POLLS);
        }
        if round == rounds {
            run(&mut lab, 0, RESET);
            probes += 1;
            drivers_hold_objects(&lab);
        }
        let removing = Instant::now();
        run(&mut lab, 0, "modprobe -r mlx5_ib mlx5_core && ! grep ^mlx5 /proc/modules");
        nothing_is_left(&lab);
        println!(
            "round {round}: loaded and active in {:.1} s, removed in {:.1} s",
            loaded.time.as_secs_f64(),
            removing.elapsed().as_secs_f64()
        );
    }
    let messages = kernels_are_content(&mut lab, 1).concat();
    let seen = messages.iter().filter(|message| message.text.contains("firmware version"));
    assert_eq!(seen.count(), probes, "probes in the kernel's log: {messages:#?}");
    hcas_are_content(&lab);

    // A guest that dies with the drivers loaded leaves HCAs that serve the next one.
    run(&mut lab, 0, "hcas-up");
    drivers_hold_objects(&lab);
    lab.kill(0).expect("it ran");
    lab.boot(0).expect("QEMU starts");
    lab.wait_ready(0).expect("it boots");
    nothing_is_left(&lab);
    run(&mut lab, 0, "dmesg -c > /dev/null; hcas-up");
    drivers_hold_objects(&lab);
    remove_drivers(&mut lab);
    kernels_are_content(&mut lab, 1);
    hcas_are_content(&lab);
    lab.stop().expect("it powers off");
    println!("{:.0} s in all", began.elapsed().as_secs_f64());
}

#[test]
fn linux_6_1_probes_and_removes() {
    probe(Kernel::V6_1, if seeds::long() { ROUNDS } else { FEW_ROUNDS });
}

#[test]
fn linux_6_12_probes_and_removes_ten_times() {
    if seeds::long() {
        probe(Kernel::V6_12, ROUNDS);
    }
}
