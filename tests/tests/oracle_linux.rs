//! The first outside judge: an unmodified Debian kernel with `mlx5_core` and `mlx5_ib` probes emulated HCAs over vfio-user,
//! brings their ports to Active, moves data from one to the other by rdma-core's programs, and lets them go again.
//!
//! Where Debian packages cannot be had the test says SKIPPED; `MLX5_REQUIRE_ORACLE=1` makes that a failure.

use hca_model::Profile;
use hca_model::hca::Census;
use hca_model::log::Level;
use runner::levels::REQUIRE_ORACLE_VARIABLE;
use runner::linux::{self, Image, ORACLE};
use runner::process::Temporary;
use runner::setup::{self, Qemu};
use runner::vfio::{self, LogSink, Served};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// HCAs of the guest.
const HCAS: usize = 2;
/// How often the drivers are loaded and removed.
const ROUNDS: usize = 3;
/// From QEMU's start to its end; on an idle machine with 2 cores it takes half a minute.
const LIMIT: Duration = Duration::from_secs(600);
/// rdma-core's programs, each run once on either HCA so that they talk to each other over the fabric.
const PINGPONGS: [&str; 6] = [
    "ibv_rc_pingpong -c -n 100 -s 4096 -m 1024",
    "ibv_rc_pingpong -c -n 100 -s 1",
    "ibv_rc_pingpong -c -n 20 -s 1048576 -m 4096",
    "ibv_rc_pingpong -c -e -n 100 -s 65536 -m 2048",
    "ibv_ud_pingpong -c -n 100 -s 2048",
    "ibv_srq_pingpong -c -n 100 -s 4096",
];
/// Loads and removes the drivers in rounds. The first waits for some health polls (2 s apart), the second moves data, the last
/// resets one function
/// under the kernel's hands and binds it again, and each waits where the host counts objects.
const SCRIPT: &str = r#"
dmesg -c > /dev/null
now() { cut -d' ' -f1 /proc/uptime; }
active() { cat /sys/class/infiniband/*/ports/1/state 2>/dev/null | grep -c ACTIVE; }
pingpong() {
    program=$1
    shift
    timeout 60 $program -d mlx5_0 "$@" > /tmp/server 2>&1 &
    sleep 1
    timeout 60 $program -d mlx5_1 "$@" 127.0.0.1 > /tmp/client 2>&1
    client=$?
    wait $!
    echo "@pingpong server $? client $client: $program $*: $(tail -n 1 /tmp/client)"
    grep -i -h -E "invalid|fail" /tmp/server /tmp/client
}
wait_active() { for wait in $(seq 300); do [ "$(active)" = HCAS ] && return; sleep 0.1; done; echo "@failed $1"; }
for round in $(seq ROUNDS); do
    begin=$(now)
    modprobe mlx5_ib || echo "@failed modprobe"
    loaded=$(now)
    wait_active modprobe
    echo "@round $round loaded from $begin to $loaded, active at $(now)"
    if [ $round = 1 ]; then
        ibv_devinfo -v
        sleep 8
    fi
    if [ $round = 2 ]; then
        modprobe ib_uverbs
        PINGPONGS
    fi
    if [ $round = ROUNDS ]; then
        for function in $(ls -d /sys/bus/pci/drivers/mlx5_core/0000:* | head -n 1); do
            name=${function##*/}
            echo $name > /sys/bus/pci/drivers/mlx5_core/unbind
            echo "@reset by $(cat /sys/bus/pci/devices/$name/reset_method)"
            echo 1 > /sys/bus/pci/devices/$name/reset || echo "@failed reset"
            echo $name > /sys/bus/pci/drivers/mlx5_core/bind || echo "@failed bind"
        done
        wait_active rebind
    fi
    echo "@probed"
    sleep 2
    begin=$(now)
    modprobe -r mlx5_ib mlx5_core || echo "@failed modprobe -r"
    grep mlx5 /proc/modules
    echo "@round $round removed from $begin to $(now)"
    echo "@removed"
    sleep 2
done
echo "@dmesg"
dmesg -r
"#;

/// What a guest needs, or `None` where it cannot be had and need not.
fn ground() -> Option<(Qemu, Image)> {
    let ground = setup::qemu().and_then(|qemu| Ok((qemu, linux::image(&ORACLE)?)));
    match ground {
        Ok(ground) => Some(ground),
        Err(error) => {
            let required = std::env::var_os(REQUIRE_ORACLE_VARIABLE).is_some_and(|value| value == "1");
            let missing = matches!(error, runner::Error::Missing { .. });
            assert!(missing && !required, "the Linux guest is required here: {error}");
            println!("SKIPPED: no Linux guest on this machine: {error}");
            None
        }
    }
}

/// What one guest showed.
struct Witness {
    lines: Vec<String>,
    status: Option<u8>,
    /// Objects of each HCA, each time the drivers were loaded.
    probed: Vec<Vec<Census>>,
    /// Objects of each HCA, each time the drivers were removed.
    removed: Vec<Vec<Census>>,
}

/// Runs the script in a guest with the HCAs of `served`.
fn watch(qemu: &Qemu, image: &Image, served: &Served) -> Witness {
    let pingpongs = PINGPONGS.map(|line| format!("pingpong {line}")).join("\n");
    let script = SCRIPT.replace("PINGPONGS", &pingpongs);
    let script = script.replace("ROUNDS", &ROUNDS.to_string()).replace("HCAS", &HCAS.to_string());
    let options = linux::Options {
        hcas: served.sockets().map(Into::into).collect(),
        limit: LIMIT,
        ..linux::Options::default()
    };
    let deadline = Instant::now() + LIMIT;
    let mut guest = linux::start(qemu, image, &script, &options).expect("QEMU starts");
    let mut witness = Witness { lines: Vec::new(), status: None, probed: Vec::new(), removed: Vec::new() };
    loop {
        match guest.next_line(deadline) {
            Ok(Some(line)) => {
                let census = || served.census().expect("the devices' thread runs");
                match line.as_str() {
                    "@probed" => witness.probed.push(census()),
                    "@removed" => witness.removed.push(census()),
                    _ => {}
                }
                if let Some(status) = line.strip_prefix("@status ") {
                    witness.status = status.trim().parse().ok();
                }
                if line.starts_with("@round") || line.starts_with("@pingpong") {
                    println!("{line}");
                }
                witness.lines.push(line);
            }
            Ok(None) => return witness,
            Err(error) => panic!("{error}; the guest printed:\n{}", witness.lines.join("\n")),
        }
    }
}

/// The kernel's messages, by syslog level.
fn kernel_log(lines: &[String]) -> Vec<(u32, &str)> {
    let begin = lines.iter().position(|line| line == "@dmesg").expect("the kernel's messages");
    let after = lines.iter().skip(begin + 1);
    after
        .filter_map(|line| {
            let (level, text) = line.strip_prefix('<')?.split_once('>')?;
            Some((level.parse::<u32>().ok()? & 7, text))
        })
        .collect()
}

/// The value behind `name:` in the part of `ibv_devinfo -v` that is about `device`.
fn device_value(lines: &[String], device: usize, name: &str) -> String {
    let mut parts = lines.iter().skip_while(|line| !line.starts_with("hca_id:")).skip_while(|line| {
        let wanted = format!("mlx5_{device}");
        !(line.starts_with("hca_id:") && line.ends_with(&wanted))
    });
    parts
        .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("ibv_devinfo shows no {name} of mlx5_{device}"))
        .trim()
        .to_owned()
}

/// As `ibv_devinfo` prints a GUID.
fn guid(value: u64) -> String {
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        value >> 48,
        value >> 32 & 0xffff,
        value >> 16 & 0xffff,
        value & 0xffff
    )
}

#[test]
fn linux_probes_the_hcas_moves_data_and_removes_them_without_a_complaint() {
    let Some((qemu, image)) = ground() else { return };
    println!("Linux {}", image.version);
    let folder = Temporary::folder("oracle-linux").expect("a folder");
    let sockets: Vec<PathBuf> = (0..HCAS).map(|i| folder.path().join(format!("hca{i}.sock"))).collect();
    let complaints: Arc<Mutex<Vec<String>>> = Arc::default();
    let log: LogSink = {
        let complaints = Arc::clone(&complaints);
        Arc::new(move |node, entry| {
            if entry.level >= Level::Warning {
                let line = format!("hca {node}: {:.6} s: {entry}", entry.at as f64 / 1e9);
                complaints.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line);
            }
        })
    };
    let served = vfio::serve(vfio::Options { log, ..vfio::Options::new(sockets) }).expect("HCAs are served");

    let witness = watch(&qemu, &image, &served);
    let text = witness.lines.join("\n");
    assert_eq!(witness.status, Some(0), "the script's status; the guest printed:\n{text}");
    assert!(!witness.lines.iter().any(|line| line.starts_with("@failed")), "{text}");
    assert!(witness.lines.iter().any(|line| line == "@reset by flr"), "no function-level reset:\n{text}");

    for device in 0..HCAS {
        let value = |name| device_value(&witness.lines, device, name);
        let profile = Profile::node(device as u16);
        assert_eq!(value("state"), "PORT_ACTIVE (4)");
        assert_eq!(value("phys_state"), "LINK_UP (5)");
        assert_eq!(value("link_layer"), "InfiniBand");
        assert_eq!(value("node_guid"), guid(profile.node_guid));
        assert_eq!(value("sys_image_guid"), guid(profile.system_image_guid));
        assert_eq!(value("GID[  0]"), format!("fe80:0000:0000:0000:{}", guid(profile.port_guid)));
        assert_eq!(value("vendor_part_id"), "4119", "0x1017");
        assert_eq!(value("board_id"), profile.psid);
        assert_eq!(value("active_mtu"), "4096 (5)");
        let number = |name| value(name).parse::<u16>().unwrap_or_else(|_| panic!("{name}: {}", value(name)));
        assert_ne!(number("port_lid"), 0);
        assert_ne!(number("sm_lid"), 0);
    }
    assert_ne!(
        device_value(&witness.lines, 0, "port_lid"),
        device_value(&witness.lines, 1, "port_lid"),
        "each port has a LID of its own"
    );

    for program in PINGPONGS {
        let wanted = format!("@pingpong server 0 client 0: {program}: ");
        assert!(witness.lines.iter().any(|line| line.starts_with(&wanted)), "{program} failed:\n{text}");
    }
    assert!(!text.contains("invalid data"), "wrong data arrived:\n{text}");

    let messages = kernel_log(&witness.lines);
    let probes =
        messages.iter().filter(|(_, text)| text.contains("mlx5_core") && text.contains("firmware version"));
    assert_eq!(probes.count(), HCAS * ROUNDS + 1, "probes in the kernel's log:\n{text}");
    // A driver's own warning, or the kernel's about a driver.
    let drivers = ["mlx5", "ib_core", "infiniband", "rdma"];
    let traces = ["cut here", "Call Trace", "BUG:", "WARNING:", "hung task", "blocked for more than"];
    let bad: Vec<&str> = messages
        .iter()
        .filter(|(level, text)| {
            (*level <= 4 && drivers.iter().any(|name| text.contains(name)))
                || traces.iter().any(|name| text.contains(name))
        })
        .map(|(_, text)| *text)
        .collect();
    assert!(bad.is_empty(), "the kernel complains:\n{}", bad.join("\n"));

    assert_eq!((witness.probed.len(), witness.removed.len()), (ROUNDS, ROUNDS));
    for census in witness.probed.iter().flatten() {
        // At least: command, asynchronous, pages and completion EQ; UMR, QP0, QP1.
        assert!(census.eqs >= 4 && census.cqs >= 1 && census.qps >= 2 && census.mkeys >= 1, "{census}");
    }
    for (round, census) in witness.removed.iter().flatten().enumerate() {
        assert_eq!(census.total(), 0, "left over after removal {round}: {census}");
    }

    // Strict as the profile is, it found nothing to refuse; nor objects or pages left over at tear-down.
    let complaints = complaints.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    assert!(complaints.is_empty(), "the device complains:\n{}", complaints.join("\n"));
    let summary = served.stop().expect("the devices' thread stops");
    assert_eq!(summary.refusals, [0; HCAS]);
}
