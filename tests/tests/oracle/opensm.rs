//! OpenSM in a Linux guest manages the fabric: it gives LIDs, programs the switch, brings ports up, and does so again after it
//! was killed and after a link was cut. infiniband-diags see what it made.
//!
//! Without QEMU or Debian packages the test says that it is skipped; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::linux::judge;
use std::time::Duration;

/// The longest that one thing may take, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(180);

fn run(lab: &mut Lab, guest: usize, script: &str) -> String {
    let answer = lab.run(guest, script, LIMIT).unwrap_or_else(|error| panic!("`{script}`: {error}"));
    let log = || lab.complaints().join("\n");
    assert!(answer.success(), "`{script}` ended with {}:\n{}\n{}", answer.status, answer.text(), log());
    answer.text()
}

/// Waits until the guest's port is in `state`.
fn wait_for(lab: &mut Lab, guest: usize, state: &str) {
    let script = format!(
        "for wait in $(seq 600); do grep -q {state} /sys/class/infiniband/mlx5_0/ports/1/state && exit 0; sleep 0.1; done\n\
         cat /sys/class/infiniband/mlx5_0/ports/1/state; tail -n 60 /tmp/opensm.out; exit 1"
    );
    run(lab, guest, &script);
}

/// A guest with OpenSM.
fn guest() -> Kind {
    judge::programs(Kernel::Backports).expect("names").into()
}

fn start_opensm(lab: &mut Lab) {
    run(
        lab,
        0,
        "mkdir -p /var/log /var/cache/opensm && background opensm opensm --log_file /tmp/opensm.log && sleep 1",
    );
}

/// OpenSM ends; what it logged of errors is answered.
fn end_opensm(lab: &mut Lab) -> String {
    run(
        lab,
        0,
        "kill $(pidof opensm); reap opensm > /dev/null; grep ERR /tmp/opensm.log; rm -f /tmp/opensm.log; true",
    )
}

const PING: &str = "ping=/bin/ping; [ -x $ping ] || ping=ping; $ping -c 3 -W 10 172.16.0.1";

#[test]
fn opensm_manages_the_fabric() {
    let options = Options { no_subnet_manager: true, ..Options::new(guest(), 2) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    for guest in 0..2 {
        run(
            &mut lab,
            guest,
            "modprobe mlx5_ib && modprobe ib_uverbs && modprobe ib_umad && modprobe ib_ipoib",
        );
        wait_for(&mut lab, guest, "INIT");
    }
    start_opensm(&mut lab);
    for guest in 0..2 {
        wait_for(&mut lab, guest, "ACTIVE");
        let number = guest + 1;
        run(
            &mut lab,
            guest,
            &format!("ip address add 172.16.0.{number}/24 dev ib0 && ip link set ib0 up && sleep 1"),
        );
    }
    // Its administrator lets both into the broadcast group, and the switch's tables lead there and back.
    println!("{}", run(&mut lab, 1, PING));

    // What the diagnosis programs see is what OpenSM made: it is the master, the switch has a LID of its choice.
    let master = run(&mut lab, 1, "sminfo");
    assert!(master.contains("SMINFO_MASTER"), "{master}");
    let found = run(&mut lab, 1, "ibnetdiscover");
    println!("{found}");
    assert_eq!(found.matches("\nCa\t").count(), 2, "{found}");
    assert_eq!(found.matches("\nSwitch\t").count(), 1, "{found}");
    let tables = run(&mut lab, 1, "ibroute $(ibswitches | sed 's/.* lid \\([0-9]*\\).*/\\1/')");
    println!("{tables}");
    assert!(tables.contains("3 valid lids"), "{tables}");
    for port in 1..=2 {
        let script = format!("smpquery portinfo $(ibswitches | sed 's/.* lid \\([0-9]*\\).*/\\1/') {port}");
        let info = run(&mut lab, 0, &script);
        assert!(info.contains("LinkState:.......................Active"), "{info}");
    }
    let errors = end_opensm(&mut lab);
    assert_eq!(errors, "", "OpenSM's log");

    // Without it the fabric goes on, but a port whose link was cut does not come up again; with the next one it does.
    run(&mut lab, 1, PING);
    lab.served().set_cable(1, false).expect("served");
    wait_for(&mut lab, 1, "DOWN");
    lab.served().set_cable(1, true).expect("served");
    wait_for(&mut lab, 1, "INIT");
    start_opensm(&mut lab);
    wait_for(&mut lab, 1, "ACTIVE");
    // While it runs, it finds the port by itself: its light sweep asks the switch.
    lab.served().set_cable(1, false).expect("served");
    wait_for(&mut lab, 1, "DOWN");
    lab.served().set_cable(1, true).expect("served");
    wait_for(&mut lab, 1, "ACTIVE");
    run(&mut lab, 1, &format!("sleep 2; {PING}"));
    end_opensm(&mut lab);
}

#[test]
fn opensm_stands_by_where_the_fabric_manages_itself() {
    let Some(mut lab) = judge::lab_or_skip(Options::new(guest(), 1)) else { return };
    run(&mut lab, 0, "hcas-up");
    let before = run(&mut lab, 0, "cat /sys/class/infiniband/mlx5_0/ports/1/lid");
    start_opensm(&mut lab);
    let stands_by = "for wait in $(seq 600); do grep -q 'Entering STANDBY' /tmp/opensm.log && exit 0; sleep 0.1; done\n\
                     cat /tmp/opensm.log; exit 1";
    run(&mut lab, 0, stands_by);
    // The one in the switch stays the master, with the LIDs that it gave.
    let master = run(&mut lab, 0, "sminfo");
    assert!(master.contains("sm lid 1 ") && master.contains("SMINFO_MASTER"), "{master}");
    let after = run(
        &mut lab,
        0,
        "cat /sys/class/infiniband/mlx5_0/ports/1/lid /sys/class/infiniband/mlx5_0/ports/1/state",
    );
    assert_eq!(after.lines().next(), Some(before.trim()), "{after}");
    assert!(after.contains("ACTIVE"), "{after}");
    let errors = end_opensm(&mut lab);
    assert_eq!(errors, "", "OpenSM's log");
}
